"""What the store promises, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import sqlalchemy as sa
from wire_maker import GIB, SECOND, Agent, new_id

from vramscope.protocol import messages as wire_messages
from vramscope.protocol import series
from vramscope_server.store import tables
from vramscope_server.store.artifacts import ArtifactRecord
from vramscope_server.store.batch_errors import BadBatch, UnknownSession
from vramscope_server.store.clock_doubt import stored_words
from vramscope_server.store.compaction import Compactor
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.retention import Retention
from vramscope_server.store.run_detail import run_in_full
from vramscope_server.store.run_queries import find_run, list_choices, list_runs
from vramscope_server.store.series_reader import RankDevice, load_columns
from vramscope_server.store.storage_errors import DatabaseRefused
from vramscope_server.store.stored_rows import StoredRun, StoredSession
from vramscope_server.store.validation import prepare
from vramscope_server.store.writer import Writer

NOW = 1_790_000_000 * SECOND


class Store:
    """A database with its writer and compactor, under a clock that the test moves."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now = NOW
        self.passed = 0
        self.news: list[BatchNews] = []
        self.rows: list[dict[str, Any]] = []
        self.open()

    def open(self) -> None:
        self.database = Database(self.url)
        self.compactor = Compactor(self.database)
        self.writer = Writer(
            self.database,
            lost_after_seconds=30,
            clock=lambda: self.now,
            listener=self._hear,
            compact=self.compactor.merge,
        )
        self.writer.start()
        self.compactor.start(self.writer)

    def close(self) -> None:
        self.compactor.close()
        self.writer.close()
        self.database.close()

    def _hear(self, stored: Any, rows: Any) -> None:
        self.news.extend(stored)
        self.rows.extend(rows)

    def wait(self, ns: float) -> None:
        """Let time pass."""
        self.now, self.passed = self.now + int(ns), self.passed + int(ns)

    def agent(self, run: str | None = None, **options: Any) -> Agent:
        return Agent(run, **{"start_ns": self.now, **options})

    def send(self, agent: Agent, *messages: wire_messages.Message, **options: Any) -> wire_messages.Ack:
        body = agent.body(*messages, **{"sent_ns": self.now, **options})
        return self.writer.submit(prepare(body, self.now)).result(10)

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass as it does for a server that is up."""
        until = self.now + int(seconds * SECOND)
        while True:
            self.now = min(until, self.now + 10 * SECOND)
            self.writer.do(lambda connection, state: state.tick(connection)).result(10)
            if self.now == until:
                return

    def run(self, text: str) -> dict[str, Any]:
        with self.database.reader() as connection:
            return run_in_full(connection, find_run(connection, text))

    def columns(
        self, run: str, *names: str, stream: str = "samples", rank: int = 0, device: int = 0, **window: Any
    ) -> Any:
        with self.database.reader() as connection:
            found = find_run(connection, run)
            loaded = load_columns(
                connection, found, RankDevice(rank, device, 0), stream, ["time_ns", "step", *names], **window
            )
            assert loaded.damaged == []
            return loaded.columns

    def chunk_levels(self) -> list[tuple[int, int]]:
        with self.database.reader() as connection:
            query = sa.select(tables.chunks.c.level, tables.chunks.c.rows).order_by(tables.chunks.c.first_time_ns)
            return [(row.level, row.rows) for row in connection.execute(query)]

    def merged(self) -> None:
        """Wait until nothing is to be merged."""
        quiet = 0
        deadline = time.monotonic() + 20
        while quiet < 3:
            assert time.monotonic() < deadline
            quiet = quiet + 1 if not self.compactor.waiting and not self.writer.waiting else 0
            time.sleep(0.03)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def test_a_batch_sent_twice_is_stored_once(store: Store) -> None:
    agent = store.agent()
    assert store.send(agent, agent.samples(5)).accepted == 1
    assert store.send(agent, agent.samples(5), sequence=1).accepted == 1
    assert store.columns(agent.run)["step"].tolist() == [0, 1, 2, 3, 4]
    assert len(store.news) == 1


def test_batches_may_come_in_any_order_and_the_answer_says_up_to_where_there_is_no_gap(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2))
    assert store.send(agent, agent.samples(2, at=4), sequence=4).accepted == 1
    assert store.send(agent, agent.samples(2, at=2), sequence=2).accepted == 2
    assert store.send(agent, agent.samples(2, at=4), sequence=4).accepted == 2
    assert store.send(agent, agent.samples(2, at=3), sequence=3).accepted == 4
    times = store.columns(agent.run)["time_ns"]
    assert times.size == 8
    assert (np.diff(times) >= 0).all(), "rows come in the order of time"


def test_data_of_a_session_that_did_not_introduce_itself_is_refused_until_it_does(store: Store) -> None:
    agent = store.agent()
    with pytest.raises(UnknownSession):
        store.send(agent, agent.samples(2), sequence=7)
    store.send(agent, agent.attached, agent.samples(2), sequence=7)
    assert store.run(agent.run)["state"] == "running"


def test_a_batch_that_contradicts_its_session_is_refused_alone(store: Store) -> None:
    """Of a group that shares a transaction, only the one that is wrong is refused."""
    agent, other = store.agent(), store.agent()
    store.send(agent)
    wrong = agent.batch(agent.samples(2))
    body = wire_messages.encode(
        wire_messages.Batch(**{f: getattr(wrong, f) for f in wrong.__struct_fields__} | {"rank": 3})
    )
    futures = [
        store.writer.submit(prepare(one, store.now))
        for one in (
            other.body(other.samples(2), sent_ns=NOW),
            body,
            agent.body(agent.samples(2), sent_ns=NOW, sequence=2),
        )
    ]
    assert futures[0].result(10).accepted == 1
    with pytest.raises(BadBatch, match="rank"):
        futures[1].result(10)
    assert futures[2].result(10).accepted == 2
    other_run = agent.batch(agent.samples(1), sequence=9)
    moved = wire_messages.encode(
        wire_messages.Batch(**{f: getattr(other_run, f) for f in other_run.__struct_fields__} | {"run": other.run})
    )
    with pytest.raises(BadBatch, match="run"):
        store.writer.submit(prepare(moved, store.now)).result(10)


def test_everything_is_still_known_after_a_restart(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(3), agent.steps(3))
    before = store.run(agent.run)
    store.close()
    store.open()
    assert store.run(agent.run) == before
    assert store.send(agent, agent.samples(3), sequence=1).accepted == 1, "known from before the restart"
    assert store.send(agent, agent.steps(2, at=1, first=4)).accepted == 2
    assert store.run(agent.run)["steps"] == 5
    assert store.columns(agent.run)["step"].size == 3


# ---- states ----


def test_a_run_that_says_so_is_finished(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2))
    assert store.run(agent.run)["state"] == "running"
    store.send(agent, agent.ended(at=5))
    run = store.run(agent.run)
    assert (run["state"], run["ended_seconds"]) == ("finished", NOW / 1e9 + 5)


def test_a_run_fails_if_any_rank_fails_and_says_with_what(store: Store) -> None:
    ranks = [store.agent(rank=0, world_size=3)]
    ranks += [store.agent(ranks[0].run, rank=r, world_size=3) for r in (1, 2)]
    for rank in ranks:
        store.send(rank, rank.samples(2))
    store.send(ranks[0], ranks[0].ended("finished"))
    store.send(ranks[1], ranks[1].ended("failed", error_type="OutOfMemoryError", error_line="CUDA out of memory."))
    assert store.run(ranks[0].run)["state"] == "running", "one rank still runs"
    store.tick(31)
    run = store.run(ranks[0].run)
    assert run["state"] == "failed"
    assert (run["error_type"], run["error_line"]) == ("OutOfMemoryError", "CUDA out of memory.")
    assert [rank["state"] for rank in run["ranks"]] == ["finished", "failed", "lost"]


def test_of_equal_peaks_the_place_is_that_of_the_lowest_rank(store: Store) -> None:
    """Pages name the first rank with the peak. Ranks report in any order, and those of DDP often have equal peaks."""
    zero = store.agent(rank=0, world_size=2)
    one = store.agent(zero.run, rank=1, world_size=2)
    for agent, highest in ((one, 3), (zero, 2)):
        peaks = [5 * GIB if step == highest else GIB for step in (1, 2, 3)]
        store.send(agent, agent.steps(3, peak_allocated_bytes=peaks))
    run = store.run(zero.run)
    assert [rank["peak_allocated_bytes"] for rank in run["ranks"]] == [5 * GIB, 5 * GIB]
    assert run["peak_step"] == 2


def test_a_silent_run_is_lost_and_a_late_batch_revives_it(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2))
    store.tick(29)
    assert store.run(agent.run)["state"] == "running"
    store.tick(2)
    assert store.run(agent.run)["state"] == "lost"
    store.send(agent, agent.samples(2, at=1))
    run = store.run(agent.run)
    assert (run["state"], run["ended_seconds"]) == ("running", None)
    store.send(agent, agent.ended())
    assert store.run(agent.run)["state"] == "finished"


def test_a_paused_run_that_gives_signs_of_life_is_not_lost(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2))
    for _ in range(5):
        store.tick(20)
        store.send(agent)
    assert store.run(agent.run)["state"] == "running"


def test_after_a_restart_of_the_server_silence_counts_anew(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2))
    store.close()
    store.now += 3600 * SECOND
    store.open()
    store.tick()
    assert store.run(agent.run)["state"] == "running", "the server was away, not the training"
    store.tick(31)
    assert store.run(agent.run)["state"] == "lost"


@pytest.mark.parametrize("jump_seconds", [86_400, 40, -40, -86_400])
def test_a_jump_of_the_clock_neither_loses_a_run_nor_keeps_a_dead_one(store: Store, jump_seconds: int) -> None:
    alive, dead = store.agent(), store.agent()
    store.send(dead, dead.samples(2))
    store.send(alive, alive.samples(2))
    store.tick(1)
    store.now += jump_seconds * SECOND
    store.tick()
    assert store.run(alive.run)["state"] == "running", "nobody could be heard in the time that the clock left out"
    for _ in range(8):
        store.tick(10)
        store.send(alive)
    store.tick(1)
    assert store.run(alive.run)["state"] == "running"
    assert store.run(dead.run)["state"] == "lost"


@pytest.mark.parametrize("end", ["finished", "failed", "lost"])
def test_a_new_session_resumes_an_ended_run(store: Store, end: str) -> None:
    first = store.agent()
    store.send(first, first.steps(5))
    if end == "lost":
        store.tick(31)
    else:
        store.send(first, first.ended(end, at=1))
    assert store.run(first.run)["state"] == end
    store.now += 60 * SECOND
    second = store.agent(first.run)
    store.send(second, second.steps(5, first=6))
    run = store.run(first.run)
    assert (run["state"], run["steps"], run["error_type"]) == ("running", 10, None)
    assert [event["kind"] for event in run["events"]] == ["resumed"]
    store.send(second, second.ended(at=2))
    assert store.run(first.run)["state"] == "finished"


def test_a_script_that_attaches_under_the_launcher_does_not_resume_its_run(store: Store) -> None:
    """The launcher's session ends before the first step, in the same process. Another process resumes the run."""
    for steps, pid, kinds in ((0, 7, []), (3, 7, ["resumed"]), (0, 8, ["resumed"])):
        first, second = store.agent(), None
        first.attached = msgspec.structs.replace(first.attached, pid=7)
        store.send(first, *([first.steps(steps)] if steps else []), first.ended(at=0.1))
        store.now += SECOND
        second = store.agent(first.run)
        second.attached = msgspec.structs.replace(second.attached, pid=pid)
        store.send(second, second.steps(5))
        run = store.run(first.run)
        assert [event["kind"] for event in run["events"]] == kinds, (steps, pid)


def test_a_resumed_run_is_not_judged_by_the_ranks_of_the_attempt_before(store: Store) -> None:
    old = [store.agent(rank=0, world_size=2)]
    old.append(store.agent(old[0].run, rank=1, world_size=2))
    for agent in old:
        store.send(agent, agent.samples(1))
        store.send(agent, agent.ended("failed", at=1))
    store.now += 60 * SECOND
    alone = store.agent(old[0].run, world_size=1)
    store.send(alone, alone.samples(1))
    assert store.run(alone.run)["ranks_reporting"] == 1
    store.send(alone, alone.ended())
    assert store.run(alone.run)["state"] == "finished"


def test_a_rank_whose_data_come_late_belongs_to_the_same_attempt(store: Store) -> None:
    first = store.agent(rank=0, world_size=2)
    late = store.agent(first.run, rank=1, world_size=2)
    store.send(first, first.samples(1), first.ended(at=5))
    store.now += 600 * SECOND
    store.send(late, late.samples(1), late.ended("failed", at=5))
    run = store.run(first.run)
    assert (run["state"], run["ranks_reporting"]) == ("failed", 2)
    assert run["events"] == [], "it did not resume the run"


def test_a_torchrun_job_is_one_run_of_many_ranks(store: Store) -> None:
    ranks = [store.agent(rank=0, world_size=8)]
    ranks += [store.agent(ranks[0].run, rank=r, world_size=8) for r in range(1, 7)]
    for rank in ranks:
        store.send(rank, rank.steps(2, peak_allocated_bytes=(rank.rank + 1) * GIB))
    run = store.run(ranks[0].run)
    assert (run["world_size"], run["ranks_reporting"]) == (8, 7)
    assert run["peak_allocated_bytes"] == 7 * GIB, "the highest of any rank"
    assert [rank["peak_allocated_bytes"] for rank in run["ranks"]] == [(r + 1) * GIB for r in range(7)]


# ---- numbers ----


def test_the_summary_is_what_the_rows_say(store: Store) -> None:
    rng = np.random.default_rng(3)
    agent = store.agent()
    peaks, durations = [], []
    for batch in range(8):
        peak = (rng.integers(1, 60, 50) * GIB).tolist()
        duration = rng.integers(SECOND // 10, SECOND // 5, 50).tolist()
        peaks += peak
        durations += duration
        store.send(
            agent, agent.steps(50, at=batch * 5, first=batch * 50 + 1, peak_allocated_bytes=peak, duration_ns=duration)
        )
    run = store.run(agent.run)
    assert run["steps"] == 400
    assert run["peak_allocated_bytes"] == max(peaks)
    assert run["peak_step"] == peaks.index(max(peaks)) + 1
    assert run["peak_phase"] == "backward"
    assert run["peak_categories"] == dict.fromkeys(series.CATEGORIES, GIB // 2) | {"workspaces": None}
    assert run["step_seconds_median"] == pytest.approx(float(np.median(durations)) / 1e9, rel=0.001)
    assert len(run["sparkline"]) <= 60
    assert max(run["sparkline"]) == max(peaks)


def test_fragmentation_is_that_of_the_moment_when_reserved_was_highest(store: Store) -> None:
    agent = store.agent()
    reserved = [10 * GIB, 30 * GIB, 20 * GIB]
    store.send(
        agent,
        agent.samples(
            3,
            reserved_bytes=reserved,
            allocated_bytes=[9 * GIB, 12 * GIB, 19 * GIB],
            inactive_split_bytes=[1, 3 * GIB, 2],
        ),
    )
    run = store.run(agent.run)
    assert run["fragmentation"] == {
        "inactive_split_bytes": 3 * GIB,
        "reserved_minus_allocated_bytes": 18 * GIB,
        "unusable_bytes": None,
        "never_needed_bytes": None,
        "parts": None,
    }
    assert run["fragmentation_fraction"] is None, "no step was seen"


def test_unusable_bytes_are_read_now_and_then_and_the_reading_with_most_reserved_counts(store: Store) -> None:
    agent = store.agent()
    reserved = [10 * GIB, 40 * GIB, 20 * GIB, 15 * GIB]
    used = {"active_bytes": 12 * GIB, "requested_bytes": 12 * GIB - 700}
    store.send(agent, agent.samples(4, reserved_bytes=reserved, unusable_bytes=[GIB, -1, 5 * GIB, -1], **used))
    store.send(agent, agent.samples(1, reserved_bytes=50 * GIB))
    run = store.run(agent.run)
    assert run["fragmentation"]["unusable_bytes"] == 5 * GIB
    parts = run["fragmentation"]["parts"]
    assert parts == {
        "reserved_bytes": reserved[2],
        "requested_bytes": 12 * GIB - 700,
        "rounding_bytes": 700,
        "usable_bytes": 3 * GIB,
        "unusable_bytes": 5 * GIB,
    }
    assert sum(parts.values()) == 2 * parts["reserved_bytes"], "the four add up to it"
    assert store.rows[-1]["unusable_bytes"] == 5 * GIB


def test_of_equal_reserved_the_reading_with_most_allocated_counts_whichever_came_first(store: Store) -> None:
    """Reserved hardly changes, and what is free between two steps says little."""
    free_between = {"allocated_bytes": 2 * GIB, "unusable_bytes": 6 * GIB, "inactive_split_bytes": 7 * GIB}
    at_peak = {"allocated_bytes": 38 * GIB, "unusable_bytes": GIB, "inactive_split_bytes": 2 * GIB}
    seen = []
    for order in ((free_between, at_peak), (at_peak, free_between)):
        agent = store.agent()
        for one in order:
            store.send(agent, agent.samples(1, reserved_bytes=40 * GIB, **one))
        run = store.run(agent.run)
        seen.append(run["fragmentation"])
    of_peak = {
        "inactive_split_bytes": 2 * GIB,
        "reserved_minus_allocated_bytes": 2 * GIB,
        "unusable_bytes": GIB,
        "never_needed_bytes": None,
        "parts": None,
    }
    assert seen == [of_peak] * 2


def test_fragmentation_is_what_was_reserved_at_most_and_never_needed_on_the_rank_with_most(store: Store) -> None:
    """Of steps alone: what is allocated for a moment no sample sees."""
    agent = store.agent()
    store.send(agent, agent.samples(2, reserved_bytes=[16 * GIB, 8 * GIB], allocated_bytes=[GIB, 2 * GIB]))
    run = store.run(agent.run)
    assert run["fragmentation_fraction"] is None and run["fragmentation"]["never_needed_bytes"] is None
    store.send(agent, agent.steps(2, peak_reserved_bytes=[8 * GIB, 7 * GIB], peak_allocated_bytes=[GIB, 2 * GIB]))
    run = store.run(agent.run)
    assert run["fragmentation_fraction"] == pytest.approx(0.75)
    assert run["fragmentation"]["never_needed_bytes"] == 6 * GIB

    ranks = [store.agent(rank=0, world_size=2)]
    ranks.append(store.agent(ranks[0].run, rank=1, world_size=2))
    for rank, reserved in zip(ranks, (4 * GIB, 8 * GIB), strict=True):
        store.send(rank, rank.steps(1, peak_reserved_bytes=reserved, peak_allocated_bytes=2 * GIB))
    assert store.run(ranks[0].run)["fragmentation"]["never_needed_bytes"] == 6 * GIB


def test_never_needed_of_a_run_that_died_in_a_step_is_the_difference_of_the_peaks_shown(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.steps(2, peak_reserved_bytes=8 * GIB, peak_allocated_bytes=4 * GIB))
    store.send(agent, agent.samples(1, reserved_bytes=10 * GIB, allocated_bytes=9 * GIB))
    run = store.run(agent.run)
    assert (run["peak_reserved_bytes"], run["peak_allocated_bytes"]) == (10 * GIB, 9 * GIB)
    assert run["fragmentation"]["never_needed_bytes"] == GIB


def test_what_is_unknown_stays_unknown_and_is_not_zero(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(3, allocated_bytes=-1, reserved_bytes=-1, inactive_split_bytes=-1))
    run = store.run(agent.run)
    for name in (
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "fragmentation",
        "fragmentation_fraction",
        "step_seconds_median",
        "out_of_memory",
        "leaks",
    ):
        assert run[name] is None, name
    assert store.columns(agent.run, "allocated_bytes", "power_milliwatts")["power_milliwatts"].tolist() == [-1] * 3


def test_ranks_and_devices_are_kept_apart(store: Store) -> None:
    zero = store.agent(devices=2, world_size=2)
    one = store.agent(zero.run, rank=1, devices=2, world_size=2)
    for agent in (zero, one):
        for device in (0, 1):
            store.send(agent, agent.samples(2, device=device, allocated_bytes=agent.rank * 10 + device))
    for rank in (0, 1):
        for device in (0, 1):
            found = store.columns(zero.run, "allocated_bytes", rank=rank, device=device)
            assert found["allocated_bytes"].tolist() == [rank * 10 + device] * 2


def test_a_live_stream_of_small_batches_becomes_few_chunks_and_loses_nothing(store: Store) -> None:
    """An agent sends two rows five times a second; here 2400 such batches, eight minutes."""
    agent = store.agent()
    rng = np.random.default_rng(1)
    values = (rng.integers(0, 1 << 36, 4800) * 512).tolist()
    futures = []
    for number in range(2400):
        part = values[2 * number : 2 * number + 2]
        body = agent.body(agent.samples(2, at=number / 5, step=number, allocated_bytes=part), sent_ns=store.now)
        futures.append(store.writer.submit(prepare(body, store.now)))
        if number % 200 == 199:
            [future.result(20) for future in futures]
    store.merged()
    levels = store.chunk_levels()
    assert sum(rows for _, rows in levels) == 4800
    assert (tables.FULL_LEVEL, 4096) in levels
    assert len(levels) <= 40
    assert store.columns(agent.run, "allocated_bytes")["allocated_bytes"].tolist() == values
    store.send(agent, agent.ended())
    store.merged()
    assert len(store.chunk_levels()) == 2, "what is left of an ended run is merged too"
    assert store.columns(agent.run, "allocated_bytes")["allocated_bytes"].tolist() == values


def test_a_window_reads_only_what_lies_in_it(store: Store) -> None:
    agent = store.agent()
    for minute in range(10):
        store.send(agent, agent.samples(60, at=minute * 60, every_ns=SECOND, step=[minute * 60 + i for i in range(60)]))
    window = {"first": NOW + 125 * SECOND, "last": NOW + 300 * SECOND}
    assert store.columns(agent.run, **window)["step"].tolist() == list(range(125, 301))
    assert store.columns(agent.run, x="step", first=59, last=61)["step"].tolist() == [59, 60, 61]
    assert store.columns(agent.run, first=NOW - 5, last=NOW - 1)["step"].size == 0


# ---- keeping and deleting ----


def test_a_project_has_one_baseline(store: Store) -> None:
    agents = [store.agent() for _ in range(2)]
    elsewhere = store.agent(project="other")
    for agent in (*agents, elsewhere):
        store.send(agent)
        store.writer.do(lambda c, state, run=agent.run: state.change(c, run, {"baseline": True})).result(10)
    assert [store.run(agent.run)["baseline"] for agent in (*agents, elsewhere)] == [False, True, True]


def test_a_live_run_cannot_be_deleted_and_an_ended_one_goes_with_all_its_data(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(5), wire_messages.Event(time_ns=NOW, kind="notice"))
    with pytest.raises(ValueError, match="live"):
        store.writer.do(lambda c, state: state.delete(c, agent.run)).result(10)
    store.send(agent, agent.ended())
    store.writer.do(lambda c, state: state.delete(c, agent.run)).result(10)
    with store.database.reader() as connection:
        for table in (tables.runs, tables.sessions, tables.ranks, tables.chunks, tables.events):
            assert connection.execute(sa.select(sa.func.count()).select_from(table)).scalar() == 0, table.name
    store.merged()


def test_retention_by_age_keeps_live_pinned_and_baseline_runs(store: Store) -> None:
    runs = {name: store.agent(name=name) for name in ("old", "pinned", "baseline", "live")}
    for name, agent in runs.items():
        store.send(agent, agent.samples(2))
        if name != "live":
            store.send(agent, agent.ended())
        if name in ("pinned", "baseline"):
            store.writer.do(lambda c, state, run=agent.run, what=name: state.change(c, run, {what: True})).result(10)
    store.now += 10 * 86_400 * SECOND
    store.send(runs["live"])
    retention = Retention(store.database, store.writer, days=9, max_bytes=None, clock=lambda: store.now)
    assert retention.apply() == [runs["old"].run]
    assert retention.apply() == []


def test_a_clock_that_jumps_ahead_deletes_no_run_for_a_day(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2), agent.ended())
    passed = 0
    retention = Retention(
        store.database, store.writer, days=9, max_bytes=None, clock=lambda: store.now, passed=lambda: passed
    )
    assert retention.apply() == []
    store.now += 10 * 86_400 * SECOND
    assert retention.apply() == []
    assert retention.clock.words == "The clock went ahead by 10 d 0 h. For 24 h 00 min no run is deleted because of it."
    for hours in (23, 1):
        assert retention.apply() == []
        store.now, passed = store.now + hours * 3600 * SECOND, passed + hours * 3600 * SECOND
    assert retention.apply() == [agent.run]


DAY = 86_400 * SECOND


def retention_of(store: Store, days: float = 9) -> Retention:
    """Of a server that starts now. The time that passes is that of the clock, without its jumps."""
    return Retention(
        store.database, store.writer, days=days, max_bytes=None, clock=lambda: store.now, passed=lambda: store.passed
    )


def test_a_server_that_starts_with_a_clock_ahead_deletes_no_run_for_a_day(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2), agent.ended())
    assert retention_of(store).apply() == []
    store.now += 1800 * DAY
    wrong = retention_of(store)
    assert wrong.apply() == []
    with store.database.reader() as connection:
        assert stored_words(connection) == wrong.clock.words, "for other processes of the database"
    assert wrong.clock.words is not None and "shows 1800 d 0 h more than when" in wrong.clock.words
    store.wait(0.9 * DAY)
    assert wrong.apply() == []
    again = retention_of(store)
    assert again.apply() == [], "a restart does not end the doubt"
    store.now -= 1800 * DAY
    assert again.apply() == [] and again.clock.words is None, "corrected"
    store.wait(9 * DAY)
    right = retention_of(store)
    assert right.apply() == [], "nine days without the server: the clock alone says so"
    store.wait(1.1 * DAY)
    assert right.apply() == [agent.run]
    assert right.clock.words is None


def test_a_server_that_is_used_once_a_week_deletes_what_was_old_the_week_before(store: Store) -> None:
    agent = store.agent()
    store.send(agent, agent.samples(2), agent.ended())
    deleted = []
    for _ in range(4):
        deleted.append(retention_of(store).apply())
        store.wait(7 * DAY)
    assert deleted == [[], [], [], [agent.run]]


def test_a_run_that_came_under_a_clock_that_was_behind_is_not_old_when_the_clock_is_right(store: Store) -> None:
    before = store.agent()
    store.send(before, before.samples(2), before.ended())
    assert retention_of(store).apply() == []
    store.wait(3600 * SECOND)
    store.now -= 300 * DAY
    behind = retention_of(store)
    during = store.agent()
    store.send(during, during.samples(2), during.ended())
    assert behind.apply() == []
    assert behind.clock.words == "The clock is 299 d 23 h behind a time that it showed before."
    store.now += 300 * DAY
    store.wait(2 * DAY)
    after = retention_of(store)
    for _ in range(3):
        assert after.apply() == []
        store.wait(DAY)
    store.wait(5 * DAY)
    assert after.apply() == [during.run, before.run]


def test_a_run_with_a_time_before_vramscope_existed_has_no_age(store: Store) -> None:
    right, store.now = store.now, 980_000_000 * SECOND  # in 2001
    agent = store.agent()
    store.send(agent, agent.samples(2), agent.ended())
    store.now = right
    retention = retention_of(store)
    for _ in range(3):
        assert retention.apply() == []
        store.wait(DAY)


def test_a_run_that_died_under_a_clock_that_was_ahead_is_lost_after_a_restart(store: Store) -> None:
    store.now += 1800 * DAY
    agent = store.agent()
    store.send(agent, agent.samples(2))
    store.close()
    store.now -= 1800 * DAY
    store.open()
    store.tick()
    assert store.run(agent.run)["state"] == "running"
    for _ in range(4):
        store.tick(10)
    assert store.run(agent.run)["state"] == "lost"


def test_retention_by_size_deletes_the_oldest_first(store: Store) -> None:
    rng = np.random.default_rng(0)
    agents = []
    for _ in range(6):
        store.now += SECOND
        agent = store.agent()
        noise = rng.integers(0, 1 << 60, 20_000).tolist()
        store.send(agent, agent.samples(20_000, allocated_bytes=noise, every_ns=1000), agent.ended())
        agents.append(agent)
    store.merged()
    with store.database.reader() as connection:
        used = store.database.used_bytes(connection)
    retention = Retention(store.database, store.writer, days=None, max_bytes=used - 300_000)
    if store.database.kind == "postgresql":
        # PostgreSQL's files shrink when autovacuum sees fit: here only that each round deletes the oldest and ends.
        deleted = retention.apply()
        assert deleted == [agent.run for agent in agents][: len(deleted)]
        return
    deleted = retention.apply()
    assert 2 <= len(deleted) <= 3
    assert deleted == [agent.run for agent in agents[: len(deleted)]]
    with store.database.reader() as connection:
        assert store.database.used_bytes(connection) <= used - 300_000


# ---- finding ----


def test_a_run_is_found_by_id_by_name_and_by_a_unique_prefix(store: Store) -> None:
    one, two = store.agent("abc00000", name="same"), store.agent("abd00000", name="same", start_ns=NOW + 5)
    store.send(one)
    store.send(two)
    assert store.run("abc00000")["run_id"] == "abc00000"
    assert store.run("same")["run_id"] == "abd00000", "the newest of that name"
    assert store.run("abc")["run_id"] == "abc00000"
    with pytest.raises(LookupError, match="Several"):
        store.run("ab")
    with pytest.raises(LookupError) as missing:
        store.run("sane")
    assert missing.value.suggestions == ["same"]  # type: ignore[attr-defined]
    store.send(store.agent("cccc0000", name="train 2026-11-29 18:08:58", start_ns=NOW - 5))
    with pytest.raises(LookupError) as missing:
        store.run("Train")
    assert missing.value.suggestions == ["train 2026-11-29 18:08:58"], "a part of a name"  # type: ignore[attr-defined]
    with pytest.raises(LookupError) as missing:
        store.run("nothing like it")
    assert missing.value.suggestions == [], "no name is near"  # type: ignore[attr-defined]
    for hostile in ("%", "_", "\\", "' OR 1=1 --", "a%"):
        with pytest.raises(LookupError):
            store.run(hostile)


def test_the_list_comes_in_pages_that_neither_repeat_nor_skip(store: Store) -> None:
    agents = [store.agent(new_id(), start_ns=NOW + i % 7, tags=["even"] if i % 2 == 0 else []) for i in range(25)]
    for agent in agents:
        store.send(agent)
    store.writer.do(lambda c, state: state.change(c, agents[3].run, {"pinned": True})).result(10)
    seen: list[str] = []
    cursor = None
    with store.database.reader() as connection:
        while True:
            rows, total, cursor, projects = list_runs(connection, limit=4, cursor=cursor)
            seen += [row["run_id"] for row in rows]
            assert (total, projects) == (25, ["gpt2"])
            if cursor is None:
                break
        assert sorted(seen) == sorted(agent.run for agent in agents)
        assert seen[0] == agents[3].run, "pinned runs come first"
        assert list_runs(connection, tag="even")[1] == 13
        assert list_runs(connection, tag="eve")[1] == 0
        assert list_runs(connection, query="H100 run")[1] == 25
        assert list_runs(connection, query="100%")[1] == 0
        assert list_runs(connection, state="finished")[1] == 0


def test_the_list_is_narrowed_by_device_and_by_any_tag(store: Store) -> None:
    card = wire_messages.Device(index=0, name="NVIDIA A100-SXM4-40GB", total_bytes=40 * GIB)
    odd = ['ü "quoted" 100%', "back\\slash", "plain"]
    agents = [store.agent(new_id(), tags=odd), store.agent(new_id(), tags=["plain"])]
    agents[1].attached = msgspec.structs.replace(agents[1].attached, devices=[card])
    for agent in agents:
        store.send(agent)
    with store.database.reader() as connection:
        devices, tags = list_choices(connection)
        assert (devices, tags) == (["NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3"], sorted(odd))
        for tag in tags:
            found = {row["run_id"] for row in list_runs(connection, tag=tag)[0]}
            assert found == {agent.run for agent in agents if tag in agent.attached.tags}, tag
        assert [row["run_id"] for row in list_runs(connection, device=card.name)[0]] == [agents[1].run]
        assert list_runs(connection, device="NVIDIA A100")[1] == 0


def test_names_of_jobs_follow_the_sessions_of_a_run(store: Store) -> None:
    """A session may attach again with another job. The run is found by a job as long as one of its sessions has it."""
    first, second = (wire_messages.Job(manager="slurm", id=ident, array=f"{ident}_1") for ident in ("77", "78"))
    run = new_id()
    ranks = [store.agent(run, rank=rank, world_size=2, jobs=[first]) for rank in range(2)]

    def found() -> list[str]:
        with store.database.reader() as connection:
            stored = connection.execute(sa.select(tables.run_jobs.c.name)).scalars().all()
            assert all(list_runs(connection, job=name)[1] == 1 for name in stored)
        return sorted(stored)

    for agent in ranks:
        store.send(agent)
        assert found() == ["77", "77_1"]
    for agent, names in zip(ranks, (["77", "77_1", "78", "78_1"], ["78", "78_1"]), strict=True):
        agent.attached = msgspec.structs.replace(agent.attached, jobs=[second])
        store.send(agent, agent.attached)
        assert found() == names
    for agent in ranks:
        store.send(agent, agent.ended())
    store.writer.do(lambda connection, state: state.delete(connection, run)).result(60)
    assert found() == []


def test_an_sqlite_file_has_one_server(tmp_path: Path) -> None:
    first = Database(f"sqlite:///{tmp_path}/vramscope.db")
    with pytest.raises(DatabaseRefused, match="another vramscope server"):
        Database(f"sqlite:///{tmp_path}/vramscope.db")
    first.close()


def test_the_tables_are_what_the_migrations_make(empty_database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from vramscope_server.store.migration import HEAD, revisions

    database = Database(empty_database_url)
    with database.reader() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    database.close()
    assert max(revisions()) == HEAD
    Database(empty_database_url).close()


def test_a_row_as_dataclass_has_every_column_of_its_table() -> None:
    for kind, table in ((StoredRun, tables.runs), (StoredSession, tables.sessions)):
        assert {one.name for one in dataclasses.fields(kind)} == set(table.columns.keys())
    assert {column.name for column in tables.artifacts.columns} <= {
        one.name for one in dataclasses.fields(ArtifactRecord)
    }
