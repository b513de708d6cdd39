"""Messages about memory that runs out soon: once per run, and never where the API has no forecast."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from message_receiver import receiving
from running import RunningServer
from waiting import eventually
from wire_maker import GIB, Agent, leak, scan

from vramscope_server import forecast_watch
from vramscope_server.forecast_watch import forecast_message
from vramscope_server.notifications import Message

pytest.importorskip("apprise")
Start = Callable[..., RunningServer]
MIB = 1 << 20
HOUR = 3600.0


def grow(agent: Agent, growth: int, *, steps: int = 200, peak_factor: int = 1) -> Any:
    at = np.arange(steps) * growth
    floor, peak = 10 * GIB + at, 20 * GIB + at * peak_factor
    return agent.steps(steps, after_step_bytes=floor.tolist(), peak_allocated_bytes=peak.tolist())


def message(server: RunningServer, agent: Agent, below_seconds: float = HOUR) -> Message | None:
    with server.services.database.reader() as connection:
        return forecast_message(connection, agent.run, below_seconds)


def seconds_left(server: RunningServer, agent: Agent, **place: int) -> float | None:
    found: float | None = server.get(f"/runs/{agent.run}/leaks", **place)["floor"]["seconds_to_out_of_memory"]
    return found


def test_the_message_has_the_forecast_of_the_page_and_its_limit(server: RunningServer) -> None:
    agent = Agent(name="gpt2")
    server.send(agent, grow(agent, 4 * MIB))
    seconds = seconds_left(server, agent)
    assert seconds is not None and 1000 < seconds < HOUR
    found = message(server, agent)
    assert found == Message(
        f"gpt2 will be out of GPU memory in about {seconds / 60:.0f} min at this rate",
        "Memory after each step grows by 4.00 MiB per step on rank 0, device 0. 59.2 GiB are left at the peak.",
    )
    assert message(server, agent, seconds) is None, "the limit itself is not below it"
    assert message(server, agent, seconds + 1) == found


def test_the_device_that_is_full_first_counts(server: RunningServer) -> None:
    zero = Agent(world_size=2)
    one = Agent(zero.run, rank=1, world_size=2)
    server.send(zero, grow(zero, MIB))
    server.send(one, grow(one, 4 * MIB))
    assert (seconds_left(server, zero) or 0) > (seconds_left(server, zero, rank=1) or 0) > 0
    found = message(server, zero)
    assert found is not None and "rank 1, device 0" in found.body
    server.send(one, one.ended())
    found = message(server, zero, 1e9)
    assert found is not None and "rank 0, device 0" in found.body, "a rank that has ended does not grow"


def no_growth(agent: Agent) -> list[Any]:
    return [grow(agent, 0)]


def few_steps(agent: Agent) -> list[Any]:
    return [grow(agent, 64 * MIB, steps=20)]


def growing_steps(agent: Agent) -> list[Any]:
    return [grow(agent, 16 * MIB, peak_factor=20), scan()]


def bounded(agent: Agent) -> list[Any]:
    return [grow(agent, 64 * MIB), scan(leak(growth_bytes_per_step=60.0 * MIB, full_bytes=5 * GIB))]


def ended(agent: Agent) -> list[Any]:
    return [grow(agent, 64 * MIB), agent.ended()]


@pytest.mark.parametrize("made", [no_growth, few_steps, growing_steps, bounded, ended])
def test_where_the_api_has_no_forecast_nothing_is_sent(
    server: RunningServer, made: Callable[[Agent], list[Any]]
) -> None:
    agent = Agent()
    server.send(agent, *made(agent))
    assert seconds_left(server, agent) is None
    assert message(server, agent, 1e12) is None


def test_a_run_on_the_cpu_has_no_device_that_is_full(server: RunningServer) -> None:
    agent = Agent(devices=0)
    at = 10 * GIB + np.arange(200) * 64 * MIB
    server.send(agent, agent.steps(200, device=-1, after_step_bytes=at.tolist()))
    assert server.get(f"/runs/{agent.run}/leaks")["floor"]["growing"] is True
    assert seconds_left(server, agent) is None and message(server, agent, 1e12) is None


def test_a_run_is_sent_once_by_the_rule_and_not_again_after_a_restart(
    start_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_watch, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(forecast_watch, "PAUSE_RATIO", 0.0)
    with receiving() as receiver:
        options = {"notify": [receiver.url], "public_url": "https://gpu.example.org", "lost_after_seconds": 600}
        server = start_server(**options)
        server.http.patch("/alerts", json={"forecast": {"below_seconds": 600}})
        slow, fast = Agent(name="slow"), Agent(name="fast")
        server.send(slow, grow(slow, 4 * MIB))
        server.send(fast, grow(fast, 64 * MIB))
        eventually(lambda: receiver.received)
        time.sleep(0.5)
        assert receiver.titles == ["fast will be out of GPU memory in about 76 s at this rate"]
        assert receiver.received[0]["message"].endswith(f"\nhttps://gpu.example.org/runs/{fast.run}/leaks")
        server.http.patch("/alerts", json={"forecast": {"on": False, "below_seconds": 3600}})
        time.sleep(0.5)
        assert len(receiver.titles) == 1
        server.http.patch("/alerts", json={"forecast": {"on": True}})
        eventually(lambda: len(receiver.titles) == 2)
        assert receiver.titles[1].startswith("slow will be out of GPU memory in about 25 min")
        server.stop()
        again = start_server(data_dir=server.services.settings.data_dir, **options)
        assert again.get(f"/runs/{fast.run}")["state"] == "running"
        time.sleep(0.5)
        assert len(receiver.titles) == 2


def test_without_targets_nothing_is_checked(server: RunningServer) -> None:
    assert server.services.forecast_watch._thread is None
