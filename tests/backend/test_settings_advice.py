"""One answer to "should the allocator settings change?" on the Anatomy page, the Fragmentation page and in the summary."""

from __future__ import annotations

from typing import Any

import pytest
from running import RunningServer
from test_recordings_seen import finished, send
from window_maker import GIB, MIB, Allocator, recorded, training
from wire_maker import Agent

from vramscope.protocol.window import Window, pack
from vramscope_server.analysis.whatif.sweep import Sweep, sweep

GROWS = "expandable_segments:True"


def fragmented(**fields: Any) -> Window:
    """Steps whose 300 MiB cut a free block of 400, so that their 200 need a segment that could have been a part of it."""
    allocator = Allocator()
    start = allocator.layout()
    for _ in range(6):
        allocator.free(allocator.alloc(400 * MIB))
        for block in [allocator.alloc(300 * MIB), allocator.alloc(200 * MIB)]:
            allocator.free(block)
        allocator.step += 1
    return recorded(start, allocator, **fields)


RECORDINGS = {
    "a card on which it saves little": (fragmented(), None),
    "a card on which it saves much": (fragmented(device_total_bytes=GIB, device_free_bytes=GIB), GROWS),
    "a card of an unknown size": (fragmented(device_total_bytes=None, device_free_bytes=None), GROWS),
    "a card on which it fails": (fragmented(device_total_bytes=596 * MIB, device_free_bytes=596 * MIB), GROWS),
    "a training": (training(), None),
}


@pytest.mark.parametrize("name", RECORDINGS)
def test_all_views_of_a_recording_agree_on_its_settings(server: RunningServer, name: str) -> None:
    window, conf = RECORDINGS[name]
    agent = Agent()
    ident = send(server, pack(window), agent)
    anatomy = server.get(f"/recordings/{ident}/anatomy")
    on_settings = [one for one in anatomy["advice"] if "ALLOC_CONF" in one["sentence"] or "expandable" in str(one)]
    swept = finished(server, server.http.post(f"/recordings/{ident}/whatif", json={}))["result"]["recommendation"]
    assert (swept["conf"], anatomy["pending"]) == (conf, False)
    assert [one["evidence"]["conf"] for one in on_settings] == ([] if conf is None else [conf])
    for one in on_settings:
        assert one["sentence"] == f"Set {swept['variable']}={conf}. {swept['words']}"
    change = server.get(f"/runs/{agent.run}/next-change")
    if conf is None:
        assert change["page"] != "/fragmentation"
    else:
        assert (change["page"], change["what"]) == ("/fragmentation", on_settings[0]["sentence"])
        assert (change["title"], change["of"]) == (f"{swept['variable']}={conf}", None)


def test_a_run_that_reserved_more_outside_of_its_recording_gets_no_advice_on_settings(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.steps(3, peak_reserved_bytes=4 * GIB))
    ident = send(server, pack(RECORDINGS["a card of an unknown size"][0]), agent)
    swept = finished(server, server.http.post(f"/recordings/{ident}/whatif", json={}))["result"]
    assert swept["recommendation"]["conf"] is None
    assert "does not contain the run's peak" in swept["recommendation"]["words"]
    assert "Outside this window the run reserved up to 4.00 GiB" in swept["notes"][-1]
    rules = {one["rule"] for one in server.get(f"/recordings/{ident}/anatomy")["advice"]}
    assert "fragmentation" not in rules


def test_a_small_card_in_question_does_not_hide_that_the_recording_has_the_peak(server: RunningServer) -> None:
    """On a card of 300 MiB the replay ends early: that says nothing about where the run's peak was."""
    agent = Agent()
    server.send(agent, agent.steps(3, peak_reserved_bytes=600 * MIB, peak_allocated_bytes=500 * MIB))
    ident = send(server, pack(RECORDINGS["a card of an unknown size"][0]), agent)
    asked = server.http.post(f"/recordings/{ident}/whatif", json={"device_bytes": 300 * MIB})
    assert "does not contain" not in finished(server, asked)["result"]["recommendation"]["words"]


def test_a_sweep_that_has_not_ended_is_awaited(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is answered at once: the page asks again."""
    import threading

    go = threading.Event()

    def late(*arguments: Any, **named: Any) -> Sweep:
        assert go.wait(60)
        return sweep(*arguments, **named)

    monkeypatch.setattr("vramscope_server.analysis.whatif.sweep.sweep", late)
    ident = send(server, pack(RECORDINGS["a card of an unknown size"][0]))
    path = f"/recordings/{ident}/anatomy"
    first = server.get(path, wait_seconds=0)
    go.set()
    assert first["pending"] and first["categories"]
    assert "fragmentation" not in {one["rule"] for one in first["advice"]}
    second = server.get(path)
    assert not second["pending"]
    assert "fragmentation" in {one["rule"] for one in second["advice"]}


def test_no_change_is_not_called_known_before_the_sweep_has_ended(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent()
    send(server, pack(RECORDINGS["a card of an unknown size"][0]), agent)
    path = f"/runs/{agent.run}/next-change"
    with monkeypatch.context() as patched:
        patched.setattr(server.services.whatif_jobs, "wait", lambda job, seconds: False)
        first = server.get(path)
    assert first["pending"] and "still being replayed" in first["reason"]
    second = server.get(path)
    assert not second["pending"] and second["page"] == "/fragmentation"


@pytest.mark.parametrize("fails", [False, True])
def test_a_sweep_is_made_once_however_rarely_it_is_asked_for(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """A command waits for a while and ends. If its sweep was given up then, the next command had to begin again."""
    import threading

    jobs, go = server.services.whatif_jobs, threading.Event()
    started = []

    def late(*arguments: Any, progress: Any, **named: Any) -> Sweep:
        started.append(arguments)
        assert go.wait(60)
        progress(1, 2)  # given up here, if nobody is thought to want it
        if fails:
            raise ValueError
        return sweep(*arguments, progress=progress, **named)

    monkeypatch.setattr("vramscope_server.analysis.whatif.sweep.sweep", late)
    path = f"/recordings/{send(server, pack(RECORDINGS['a card of an unknown size'][0]))}/anatomy"
    assert server.get(path, wait_seconds=0.5)["pending"]
    job = list(jobs._jobs.values())[-1]
    monkeypatch.setattr(jobs, "_abandoned_seconds", 0.0)
    go.set()
    assert job.finished.wait(60)
    answer = server.get(path)
    assert not answer["pending"] and len(started) == 1
    assert ("fragmentation" in {one["rule"] for one in answer["advice"]}) is not fails
