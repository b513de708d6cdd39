"""The change most worth trying: the fix of a leak, else the advice of a recording, else the reason why none is known."""

from __future__ import annotations

from running import RunningServer
from test_recordings_seen import send
from window_maker import training
from wire_maker import Agent, leak, scan

from vramscope.protocol.window import pack


def test_the_largest_leak_comes_first(server: RunningServer) -> None:
    agent = Agent()
    small = leak(name="small", held_bytes=1 << 20, exclusive_bytes=1 << 20)
    large = leak(name="large", line=90, held_bytes=1 << 28, exclusive_bytes=1 << 28)
    server.send(agent, agent.steps(30), scan(small, large, step=20))
    change = server.get(f"/runs/{agent.run}/next-change")
    assert (change["source"], change["page"]) == ("leak", "/leaks")
    assert change["title"] == "fix the leak of large"
    listed = {one["name"]: one for one in server.get(f"/runs/{agent.run}/leaks")["leaks"]}
    assert change["saves_bytes"] == listed["large"]["peak_effect_bytes"]
    assert change["reason"] is None


def test_a_recordings_advice_with_most_bytes(server: RunningServer) -> None:
    agent = Agent()
    recording = send(server, pack(training(layers=12)), agent)
    server.send(agent, agent.steps(3))
    change = server.get(f"/runs/{agent.run}/next-change")
    advice = [one for one in server.get(f"/recordings/{recording}/anatomy")["advice"] if one["saves_bytes"]]
    assert advice, "this recording has a change that saves memory"
    assert change["source"] == "recording"
    assert (change["what"], change["saves_bytes"]) == (advice[0]["sentence"], advice[0]["saves_bytes"])


def test_without_evidence_there_is_a_reason(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(3))
    change = server.get(f"/runs/{agent.run}/next-change")
    assert (change["what"], change["saves_bytes"], change["source"]) == (None, None, None)
    assert change["reason"] == "No step was recorded, so no saving can be calculated."
