"""Live events: what is committed is heard, by stream and by polling; slow readers are told; nobody holds the server up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from running import RunningServer
from wire_maker import Agent

from vramscope.protocol import series
from vramscope_server import broadcaster as module
from vramscope_server.broadcaster import COLUMNS, Broadcaster
from vramscope_server.figures.registry import COMPARE_FIGURES, RUN_FIGURES
from vramscope_server.store.ingest_state import Stored
from vramscope_server.store.validation import ReadyBlock


def play(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """On a thread of its own: on this one a browser's driver may have left its loop running."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(scene())).result()


def events_of(stream: httpx.Response) -> Iterator[tuple[int | None, str, Any]]:
    number: int | None = None
    kind = ""
    for line in stream.iter_lines():
        name, _, value = line.partition(": ")
        if name == "id":
            number = int(value)
        elif name == "event":
            kind = value
        elif name == "data":
            yield number, kind, json.loads(value)
            number = None


def test_rows_are_heard_after_their_commit_and_runs_when_they_change(server: RunningServer) -> None:
    agent, other = Agent(), Agent()
    with server.http.stream("GET", "/live", params={"runs": agent.run}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in stream.headers["cache-control"]
        assert stream.headers["x-accel-buffering"] == "no"
        events = events_of(stream)
        assert next(events)[1] == "alive"
        server.send(other, other.samples(3))
        sent = time.monotonic()
        server.send(agent, agent.samples(3, power_milliwatts=[1, -1, 3]), agent.steps(1))
        heard: list[tuple[str, Any]] = []
        while len([1 for kind, _ in heard if kind == "rows"]) < 2:
            _, kind, data = next(events)
            heard.append((kind, data))
        assert time.monotonic() - sent < 2
    rows = {data["stream"]: data for kind, data in heard if kind == "rows"}
    assert {data["run"] for data in rows.values()} == {agent.run}, "only the rows that were asked for"
    assert {data["run_id"] for kind, data in heard if kind == "run"} == {agent.run, other.run}, "the states of all runs"
    columns = rows["samples"]["columns"]
    assert columns["power_milliwatts"] == [1, None, 3]
    assert columns["time_seconds"][0] == pytest.approx(agent.start_ns / 1e9)
    assert (rows["samples"]["rank"], rows["samples"]["device"]) == (0, 0)
    assert rows["steps"]["columns"]["step"] == [1]


def test_a_reader_that_comes_back_hears_what_it_missed(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(1))
    with server.http.stream("GET", "/live", params={"runs": agent.run}) as stream:
        last = next(events_of(stream))[0]
    assert last is not None
    for at in range(1, 4):
        server.send(agent, agent.samples(1, at=at, step=at))
        time.sleep(0.25)
    with server.http.stream("GET", "/live", params={"runs": agent.run}, headers={"Last-Event-ID": str(last)}) as stream:
        steps: list[int] = []
        for number, kind, data in events_of(stream):
            assert kind != "gap"
            if kind == "rows":
                assert number is not None and number > last
                steps += data["columns"]["step"]
            if 3 in steps:
                break
    assert [step for step in steps if step] == [1, 2, 3]


def test_one_who_was_away_too_long_is_told_to_fetch_again(server: RunningServer) -> None:
    with server.http.stream("GET", "/live", headers={"Last-Event-ID": "5"}) as stream:
        kinds = [kind for _, (_, kind, _) in zip(range(2), events_of(stream), strict=False)]
    assert kinds == ["alive", "gap"]
    assert server.get("/live/delta", after=5)["gap"] is True
    assert server.get("/live/delta", after=10**15)["gap"] is True, "an id of the future: another server's"


def test_polling_gives_the_same_events(server: RunningServer) -> None:
    agent = Agent()
    first = server.get("/live/delta", runs=agent.run)
    assert first["events"] == []
    server.send(agent, agent.samples(2, step=[7, 8]))
    deadline = time.monotonic() + 5
    rows: list[Any] = []
    last = first["last"]
    while not rows:
        assert time.monotonic() < deadline
        told = server.get("/live/delta", runs=agent.run, after=last)
        assert told["gap"] is False
        assert [event["id"] for event in told["events"]] == sorted(event["id"] for event in told["events"])
        last = told["last"]
        rows = [event["data"] for event in told["events"] if event["event"] == "rows"]
        time.sleep(0.05)
    assert rows[0]["columns"]["step"] == [7, 8]


def test_what_is_wrong_with_the_server_is_told_at_once_and_when_it_is_over(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent, agent.samples(1))

    def limit(pages: int) -> None:
        """So many pages are all that SQLite takes, which is what a full disk is to it."""
        work = server.house.writer.do(
            lambda connection, _: connection.exec_driver_sql(f"PRAGMA max_page_count={pages}").fetchall()
        )
        work.result(5)

    noise = np.random.default_rng(0).integers(0, 1 << 60, 60_000).tolist()
    large = agent.body(agent.samples(60_000, every_ns=1000, allocated_bytes=noise))
    assert server.get("/live/delta")["problems"] == []
    with server.http.stream("GET", "/live") as stream:
        told = ((data["problems"], time.monotonic()) for _, kind, data in events_of(stream) if kind == "alive")
        assert next(told)[0] == []
        limit(1)
        assert server.post(large).status_code == 503
        refused = time.monotonic()
        said, at = next(told)
        assert said == ["Nothing can be stored: the disk that holds the database is full."] and at - refused < 5
        assert server.get("/live/delta")["problems"] == said
        with server.http.stream("GET", "/live") as other:
            assert next(events_of(other))[2]["problems"] == said, "who comes later hears it first of all"
        limit(1_000_000)
        time.sleep(1)  # it lets one through every second
        assert server.post(large).status_code == 200
        assert next(told)[0] == []


def test_a_stream_is_sent_at_most_five_times_a_second(server: RunningServer) -> None:
    agent = Agent()
    server.send(agent)
    with server.http.stream("GET", "/live", params={"runs": agent.run}) as stream:
        events = events_of(stream)
        next(events)
        started = time.monotonic()
        for number in range(40):
            server.send(agent, agent.samples(1, at=number, step=number))
        sending = time.monotonic() - started
        steps: list[int] = []
        count = 0
        while 39 not in steps:
            _, kind, data = next(events)
            if kind == "rows":
                steps += data["columns"]["step"]
                count += 1
    assert steps == list(range(40))
    assert count <= (sending + 0.5) * 5 + 2


def test_the_server_stops_within_two_seconds_with_streams_open(start_server: Callable[..., RunningServer]) -> None:
    server = start_server()
    other = httpx.Client(base_url=f"{server.url}/api/v1", timeout=10, trust_env=False)
    with other.stream("GET", "/live") as one, other.stream("GET", "/live") as two:
        next(events_of(one))
        next(events_of(two))
        assert server.stop() < 2
    other.close()


def stored(rows: int, run: str = "run00001") -> Stored:
    columns = {"time_ns": np.arange(rows) + 10**18, "step": np.arange(rows), "allocated_bytes": np.arange(rows)}
    return Stored(run, 0, 0, [ReadyBlock(0, "samples", columns)])


def test_a_slow_reader_loses_the_oldest_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
        caster = Broadcaster()
        caster.start()
        slow = caster.subscribe(frozenset({"run00001"}), None)
        for _ in range(module.QUEUE_EVENTS + 20):
            caster.publish([stored(1)], [])
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        missed, events = await slow.take(1)
        assert missed
        assert len(events) == module.QUEUE_EVENTS
        assert events[-1].id == caster.last
        assert await slow.take(0.01) == (False, [])
        caster.close()
        assert slow.closed

    play(scene)


def test_history_that_comes_late_is_announced_as_a_gap_and_not_sent_row_by_row() -> None:
    async def scene() -> None:
        caster = Broadcaster()
        caster.start()
        reader = caster.subscribe(frozenset({"run00001"}), None)
        caster.publish([stored(module.MAX_ROWS + 1)], [])
        _, events = await reader.take(2)
        assert [event.kind for event in events] == ["gap"]
        caster.close()

    play(scene)


def test_what_is_kept_for_those_who_come_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        monkeypatch.setattr(module, "EVERY_SECONDS", 0.0)
        monkeypatch.setattr(module, "RING_BYTES", 20_000)
        caster = Broadcaster()
        caster.start()
        caster.heard()
        start = caster.last
        for _ in range(100):
            caster.publish([stored(20)], [])
            await asyncio.sleep(0.001)
        assert caster.since(start, frozenset({"run00001"})) == ([], True)
        events, gap = caster.since(caster.last - 2, frozenset({"run00001"}))
        assert (len(events), gap) == (2, False)
        caster.close()

    play(scene)


def test_the_columns_that_are_sent_live_are_those_that_figures_draw() -> None:
    for stream, names in COLUMNS.items():
        assert set(names) <= series.STREAMS.get(stream, {"step": None, **series.LOSSES}).keys()
    for figure in (*RUN_FIGURES.values(), *COMPARE_FIGURES.values()):
        for stream, names in figure.needs.items():
            missing = set(names) - set(COLUMNS[stream])
            assert not missing, f"{figure.name} draws {missing}"
