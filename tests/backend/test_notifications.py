"""Messages about runs reach a real receiver, once each, with a link."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from message_receiver import Receiver, receiving
from running import RunningServer
from waiting import eventually
from wire_maker import Agent

from vramscope.protocol import messages
from vramscope_server import notifications
from vramscope_server.cli import run_command

pytest.importorskip("apprise")
Start = Callable[..., RunningServer]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def ended(error: str | None = None) -> messages.Ended:
    state = "finished" if error is None else "failed"
    return messages.Ended(time_ns=time.time_ns(), state=state, error_type=error, error_line=error and f"{error}: bad")


def test_a_failed_run_is_sent_once_with_a_link(start_server: Start, receiver: Receiver) -> None:
    server = start_server(notify=[receiver.url], public_url="https://gpu.example.org")
    well, bad = Agent(name="well"), Agent(name="bad <b>")
    for agent, error in ((well, None), (bad, "ValueError")):
        server.send(agent, agent.samples(3))
        server.send(agent, ended(error))
    eventually(lambda: receiver.received)
    server.send(bad, bad.samples(3))
    server.http.patch(f"/runs/{bad.run}", json={"tags": ["seen"]})
    server.stop()
    assert receiver.titles == ["bad <b> failed"]
    assert receiver.received[0]["message"] == f"ValueError: bad\nhttps://gpu.example.org/runs/{bad.run}"
    again = start_server(data_dir=server.services.settings.data_dir, notify=[receiver.url])
    again.http.patch(f"/runs/{bad.run}", json={"tags": ["again"]})
    time.sleep(0.5)
    assert receiver.titles == ["bad <b> failed"], "not again after a restart"


def test_a_silent_run_is_sent(start_server: Start, receiver: Receiver) -> None:
    server = start_server(notify=[receiver.url], lost_after_seconds=0.2)
    agent = Agent(name="quiet")
    server.send(agent, agent.samples(3))
    eventually(lambda: receiver.titles == ["quiet is silent"])
    assert receiver.received[0]["message"].endswith(f"/runs/{agent.run}")


def test_a_message_that_is_refused_is_sent_again(
    start_server: Start, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "PAUSES_SECONDS", (0.05, 0.05, 0.05))
    server = start_server(notify=[receiver.url])
    receiver.refusals = 2
    agent = Agent(name="bad")
    server.send(agent, ended("ValueError"))
    eventually(lambda: receiver.titles == ["bad failed"])
    (target,) = server.get("/notifications")
    eventually(lambda: server.get("/notifications")[0]["problem"] is None)
    assert "secret" not in target["name"] and target["name"].startswith("json://")


def test_a_test_shows_what_arrives_and_what_does_not(start_server: Start, receiver: Receiver) -> None:
    server = start_server(notify=[receiver.url, "json://127.0.0.1:9/nobody"])
    assert [one["last_sent_seconds"] for one in server.get("/notifications")] == [None, None]
    arrived, lost = server.http.post("/notifications/test").json()
    assert receiver.titles == ["vramscope: a test"]
    assert arrived["problem"] is None and arrived["last_sent_seconds"] is not None
    assert "was not accepted" in lost["problem"] and lost["last_sent_seconds"] is None
    assert start_server().get("/notifications") == []


ROW: Any = {
    "run_id": "r", "name": "gpt2", "state": "running", "steps": 7, "out_of_memory": None, "error_type": None,
    "error_line": None, "leaks": None, "leaked_bytes": None, "capacity_bytes": 10 << 30, "peak_reserved_bytes": 9 << 30,
    "sampled_reserved_bytes": None, "lower_bound_steps": 0,
}  # fmt: skip
RULES: Any = {
    "leaks": {"on": True, "least_bytes": 100}, "out_of_memory": {"on": True}, "headroom": {"on": True, "below_fraction": 0.05},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "kinds"),
    [
        ({}, []),
        ({"out_of_memory": 2}, ["out_of_memory"]),
        ({"out_of_memory": 1, "state": "failed", "error_type": "torch.OutOfMemoryError"}, ["failed"]),
        ({"state": "failed", "error_type": "torch.OutOfMemoryError"}, ["failed"]),
        ({"out_of_memory": 1, "state": "failed", "error_type": "KeyError"}, ["failed", "out_of_memory"]),
        ({"state": "lost"}, ["lost"]),
        ({"leaks": 1, "leaked_bytes": 99}, []),
        ({"leaks": 1, "leaked_bytes": 100}, ["leak"]),
        ({"leaks": 0, "leaked_bytes": 0}, []),
        ({"peak_reserved_bytes": int(9.8 * (1 << 30))}, ["headroom"]),
        ({"peak_reserved_bytes": None}, []),
    ],
)
def test_each_kind_of_message_has_its_condition(changes: dict[str, Any], kinds: list[str]) -> None:
    assert list(notifications.messages_of({**ROW, **changes}, RULES)) == kinds


@pytest.mark.parametrize(("sampled_gib", "titles"), [(9.8, ["gpt2 has at most 2.0 % of the device left"]), (9, [])])
def test_a_sampled_peak_can_show_that_headroom_is_small(sampled_gib: float, titles: list[str]) -> None:
    row = {**ROW, "peak_reserved_bytes": None, "sampled_reserved_bytes": int(sampled_gib * (1 << 30))}
    found = notifications.messages_of(row, RULES).values()
    assert [message.title for message in found] == titles
    assert all(message.body == "Peak reserved: at least 9.80 GiB of 10.0 GiB (sampled)." for message in found)


def test_a_run_with_samples_alone_has_a_message_about_headroom(start_server: Start, receiver: Receiver) -> None:
    server = start_server(notify=[receiver.url])
    server.http.patch("/alerts", json={"headroom": {"on": True, "below_fraction": 0.99}})
    agent = Agent(name="xpu")
    unknown = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_allocated_bytes"), -1)
    server.send(agent, agent.samples(3, reserved_bytes=4 << 30), agent.steps(3, **unknown))
    eventually(
        lambda: [title for title in receiver.titles if re.match(r"xpu has at most \d.* of the device left", title)]
    )


def test_a_message_about_headroom_has_the_samples_of_a_rank_without_peaks(
    start_server: Start, receiver: Receiver
) -> None:
    """One rank was measured. Another one has samples alone, which are higher: the headroom is less than the peak leaves."""
    server = start_server(notify=[receiver.url])
    measured = Agent(name="mixed", world_size=2)
    server.send(measured, measured.samples(3, reserved_bytes=4 << 30), measured.steps(3, peak_reserved_bytes=4 << 30))
    total = server.get(f"/runs/{measured.run}")["capacity_bytes"]
    server.http.patch("/alerts", json={"headroom": {"on": True, "below_fraction": 1 - (5 << 30) / total}})
    other = Agent(name="mixed", run=measured.run, rank=1, world_size=2)
    unknown = dict.fromkeys(("peak_allocated_bytes", "peak_reserved_bytes", "forward_peak_allocated_bytes"), -1)
    server.send(other, other.samples(3, reserved_bytes=6 << 30), other.steps(3, **unknown))
    eventually(lambda: any("mixed has at most" in title for title in receiver.titles))
    assert "Peak reserved: at least 6.00 GiB of" in receiver.received[0]["message"]


def test_a_run_that_survives_one_error_and_dies_of_the_next_has_two_messages(
    start_server: Start, receiver: Receiver
) -> None:
    server = start_server(notify=[receiver.url])
    agent = Agent(name="gpt2")
    server.send(agent, agent.samples(3, ooms=1))
    eventually(lambda: receiver.titles == ["gpt2 ran out of GPU memory"])
    server.send(agent, ended("torch.OutOfMemoryError"))
    eventually(lambda: len(receiver.titles) == 2)
    assert receiver.titles[1] == "gpt2 ran out of GPU memory and failed"


def test_a_target_that_does_not_answer_delays_no_other(start_server: Start, receiver: Receiver) -> None:
    server = start_server(notify=["json://127.0.0.1:9/nobody", receiver.url])
    for name in ("one", "two"):
        server.send(Agent(name=name), ended("ValueError"))
    eventually(lambda: receiver.titles == ["one failed", "two failed"])


def test_a_rule_that_is_off_sends_nothing() -> None:
    off: Any = {name: {**rule, "on": False} for name, rule in RULES.items()}
    row = {**ROW, "out_of_memory": 1, "leaks": 1, "leaked_bytes": 1 << 30, "peak_reserved_bytes": 10 << 30}
    assert notifications.messages_of(row, off) == {}


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("VRAMSCOPE_NOTIFY", "carrier-pigeon://secret@loft", "it begins with 'carrier-pigeon'"),
        ("VRAMSCOPE_PUBLIC_URL", "gpu.example.org", "an address begins with http:// or https://"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_at_the_start(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    told: str,
) -> None:
    monkeypatch.setenv(variable, value)
    assert run_command(["server", "--port", "0", "--data-dir", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert told in err and "secret" not in err
