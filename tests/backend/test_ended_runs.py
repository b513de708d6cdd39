"""What a server keeps in memory about runs is dropped when they end: it does not grow with their number."""

from __future__ import annotations

import collections
import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
from running import RunningServer
from waiting import eventually
from wire_maker import Agent, leak, scan

from vramscope_server import known_messages, live_events, send_interval
from vramscope_server.known_messages import KnownMessages
from vramscope_server.store import run_cache

RUNS, KEPT_RUNS = 16, 6


def container_sizes(root: object) -> collections.Counter[str]:
    """Number of elements of each container that objects of ours reach, by the attributes on the way."""
    sizes = collections.Counter[str]()
    seen: set[int] = set()
    waiting = collections.deque([("", root)])
    while waiting:
        path, one = waiting.popleft()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict | list | set | tuple | collections.deque):
            sizes[path] += len(one)
            elements = [*one.keys(), *one.values()] if isinstance(one, dict) else list(one)
            waiting += [(f"{path}[]", element) for element in elements if gc.is_tracked(element)]
        elif type(one).__module__.split(".")[0] == "vramscope_server":
            names = [
                *getattr(one, "__dict__", {}),
                *(n for c in type(one).__mro__ for n in getattr(c, "__slots__", ())),
            ]
            waiting += [(f"{path}.{name}", getattr(one, name, None)) for name in names]
    return sizes


def send_runs(server: RunningServer) -> None:
    """Runs that end, and as many that fall silent, each with samples, steps and a leak; a page watches."""
    cursor = server.get("/live/delta")["last"]
    for number in range(RUNS):
        agent = Agent(rank=0)
        server.send(agent, agent.samples(3), agent.steps(2), scan(leak()))
        if number % 2:
            server.send(agent, agent.samples(2, at=1.0), agent.ended())
    server.get("/live/delta", after=cursor)
    eventually(lambda: server.get("/runs", state="running")["total"] == 0)
    for _ in range(KEPT_RUNS // 2):  # a new run makes place for itself
        agent = Agent()
        server.send(agent, agent.samples(3), agent.ended())
    eventually(lambda: not server.services.writer.waiting and not server.services.compactor.waiting)
    time.sleep(1.2)  # a turn of the writer without work
    server.get("/live/delta", after=cursor)


def test_memory_about_ended_runs_is_dropped(
    start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice as many runs leave nothing more behind."""
    monkeypatch.setattr(run_cache, "KEEP_RUNS", KEPT_RUNS)
    monkeypatch.setattr(live_events, "KEPT_SECONDS", 0.0)
    monkeypatch.setattr(live_events, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(send_interval, "WINDOW_SECONDS", 0.0)
    server = start_server(lost_after_seconds=0.3)
    send_runs(server)
    before = container_sizes(server.services)
    assert any(path.startswith(".writer._state._runs") for path in before), "the search reaches the writer's state"
    send_runs(server)
    state: Any = server.services.writer._state
    assert (state._small._counts, state._live, server.services.latest_samples._ranks) == ({}, set(), {})
    assert sum(1 for _ in state._runs) <= KEPT_RUNS
    after = container_sizes(server.services)
    grown = {path: (before[path], size) for path, size in after.items() if size >= before[path] + RUNS // 2}
    assert not grown


def test_counts_of_small_chunks_are_read_for_running_runs_only(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    ended, running = Agent(), Agent()
    server.send(ended, ended.samples(3), ended.ended())
    server.send(running, running.samples(3))
    eventually(lambda: not server.services.compactor.waiting)
    server.stop()
    again = start_server(data_dir=server.services.settings.data_dir)
    state: Any = again.services.writer._state
    assert [count for count, _ in state._small._counts.values()] == [1]


def test_known_messages_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_messages, "MOST_RUNS", 3)
    known = KnownMessages()
    for run in "abc":
        known.add(run, "failed")
    known.add("a", "leak")
    assert known.of("b") == {"failed"}
    known.add("d", "failed")
    assert (len(known), known.of("c"), known.of("a")) == (3, frozenset(), {"failed", "leak"})
    known.add("e")
    assert len(known) == 3, "a run without a message takes no memory"
