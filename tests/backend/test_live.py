"""Live events: committed rows reach pages that poll; lost events are reported as a gap; memory is bounded."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from running import RunningServer
from wire_maker import Agent

from vramscope.protocol import series
from vramscope_server import live_events as module
from vramscope_server.figures.registry import COMPARE_FIGURES, RUN_FIGURES
from vramscope_server.live_events import COLUMNS, LiveEvents
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.validation import ReadyBlock

RUN = "run00001"


class Page:
    """A page that polls."""

    def __init__(self, server: RunningServer, *runs: str) -> None:
        self.server = server
        self.runs = ",".join(runs)
        self.last = server.get("/live/delta", runs=self.runs)["last"]

    def poll(self) -> list[dict[str, Any]]:
        """New events. Fails on a gap."""
        answer = self.server.get("/live/delta", runs=self.runs, after=self.last)
        assert answer["gap"] is False
        ids = [event["id"] for event in answer["events"]]
        assert ids == sorted(ids) and all(self.last < one <= answer["last"] for one in ids)
        self.last = answer["last"]
        return list(answer["events"])

    def wait_for(self, *kinds: str) -> list[dict[str, Any]]:
        """All events until each of these kinds has arrived."""
        events: list[dict[str, Any]] = []
        deadline = time.monotonic() + 5
        while not set(kinds) <= {event["event"] for event in events}:
            assert time.monotonic() < deadline, events
            events += self.poll()
            time.sleep(0.05)
        return events


def test_committed_rows_and_changed_runs_are_events(server: RunningServer) -> None:
    agent, other = Agent(), Agent()
    page = Page(server, agent.run)
    server.send(other, other.samples(3))
    server.send(agent, agent.samples(3, power_milliwatts=[1, -1, 3]), agent.steps(1))
    events = page.wait_for("rows", "run")
    rows = {event["data"]["stream"]: event["data"] for event in events if event["event"] == "rows"}
    assert {data["run"] for data in rows.values()} == {agent.run}, "only the rows that were asked for"
    runs = {event["data"]["run_id"] for event in events if event["event"] == "run"}
    assert runs == {agent.run, other.run}, "the states of all runs"
    columns = rows["samples"]["columns"]
    assert columns["power_milliwatts"] == [1, None, 3]
    assert columns["time_seconds"][0] == pytest.approx(agent.start_ns / 1e9)
    assert (rows["samples"]["rank"], rows["samples"]["device"]) == (0, 0)
    assert rows["steps"]["columns"]["step"] == [1]


def test_page_that_polls_later_gets_all_rows_once(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(1))
    page = Page(server, agent.run)
    for at in range(1, 4):
        server.send(agent, agent.samples(1, at=at, step=at))
        time.sleep(0.25)
    steps = [
        step for event in page.wait_for("rows") if event["event"] == "rows" for step in event["data"]["columns"]["step"]
    ]
    assert [step for step in steps if step] == [1, 2, 3]


def test_unknown_ids_are_a_gap(server: RunningServer) -> None:
    assert server.get("/live/delta", after=5)["gap"] is True, "too old"
    assert server.get("/live/delta", after=10**15)["gap"] is True, "of another server"


def test_problems_of_the_server_are_reported_while_they_last(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(1))

    def limit(pages: int) -> None:
        """Limit SQLite to this number of pages: to SQLite that is a full disk."""
        work = server.services.writer.do(
            lambda connection, _: connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").fetchall()
        )
        work.result(5)

    noise = np.random.default_rng(0).integers(0, 1 << 60, 60_000).tolist()
    large = agent.body(agent.samples(60_000, every_ns=1000, allocated_bytes=noise))
    assert server.get("/live/delta")["problems"] == []
    limit(1)
    assert server.post(large).status_code == 503
    problems = ["Nothing can be stored: the disk that holds the database is full."]
    assert server.get("/live/delta")["problems"] == problems
    limit(1_000_000)
    time.sleep(1)  # the writer tries again every second
    assert server.post(large).status_code == 200
    assert server.get("/live/delta")["problems"] == []


def test_rows_are_encoded_at_most_five_times_a_second(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent)
    page = Page(server, agent.run)
    steps: list[int] = []
    count = 0
    started = time.monotonic()
    for number in range(40):
        server.send(agent, agent.samples(1, at=number, step=number))
        found = [event["data"] for event in page.poll() if event["event"] == "rows"]
        count += len(found)
        steps += [step for data in found for step in data["columns"]["step"]]
    assert count <= (time.monotonic() - started) * 5 + 2
    while 39 not in steps:
        found = [event["data"] for event in page.wait_for("rows") if event["event"] == "rows"]
        steps += [step for data in found for step in data["columns"]["step"]]
    assert steps == list(range(40))


def stored(rows: int, run: str = RUN) -> BatchNews:
    columns = {"time_ns": np.arange(rows) + 10**18, "step": np.arange(rows), "allocated_bytes": np.arange(rows)}
    return BatchNews("gpt2", run, 0, 0, [ReadyBlock(0, "samples", columns)])


def test_late_history_is_one_gap_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    live = LiveEvents()
    start = live.start()
    live.publish([stored(10)], [])
    live.publish([stored(module.MAX_ROWS)], [])
    live.publish([stored(1)], [])
    events, last, gap = live.since(start, frozenset({RUN}))
    assert ([event.kind for event in events], last, gap) == (["gap"], start + 1, False)


def test_kept_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "RING_BYTES", 20_000)
    live = LiveEvents()
    start = last = live.start()
    for _ in range(100):
        live.publish([stored(20)], [])
        _, last, _ = live.since(last, frozenset())
    assert live.since(start, frozenset({RUN})) == ([], last, True)
    events, _, gap = live.since(last - 2, frozenset({RUN}))
    assert (len(events), gap) == (2, False)


def test_old_events_are_dropped_while_pages_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the memory of a server that is watched grows for twenty minutes and more."""
    monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.2)
    live = LiveEvents()
    start = live.start()
    for _ in range(3):
        live.publish([stored(20)], [])
        assert not live.since(start, frozenset({RUN}))[2]
    last = live.last
    time.sleep(0.3)
    live.publish([stored(20)], [])
    assert live.since(start, frozenset({RUN})) == ([], last + 1, True)
    events, _, gap = live.since(last, frozenset({RUN}))
    assert (len(events), gap, len(live._ring)) == (1, False, 1)
    assert live._ring_bytes == len(events[0].data) + 200


def test_nothing_is_kept_while_no_page_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveEvents()
    start = live.start()
    monkeypatch.setattr(module, "IDLE_SECONDS", -1.0)
    live.publish([stored(20)], [])
    monkeypatch.undo()
    assert live.since(start, frozenset({RUN})) == ([], start + 1, True)


def test_live_columns_are_those_that_figures_draw() -> None:
    for stream, names in COLUMNS.items():
        assert set(names) <= series.STREAMS.get(stream, {"step": None, **series.LOSSES}).keys()
    for figure in (*RUN_FIGURES.values(), *COMPARE_FIGURES.values()):
        for stream, names in figure.needs.items():
            missing = set(names) - set(COLUMNS[stream]) - {"time_ns"}  # sent with all rows
            assert not missing, f"{figure.name} draws {missing}"
