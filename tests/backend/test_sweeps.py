"""What-if jobs: one at a time, joined, kept, and given up when nobody asks any more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vramscope_server import whatif_jobs as room
from vramscope_server.whatif_jobs import GivenUp, Progress, TooMany, WhatifJobs


@pytest.fixture
def jobs() -> Iterator[WhatifJobs]:
    made = WhatifJobs(abandoned_seconds=0.3)
    yield made
    made.close()


def gated(gate: threading.Event, log: list[str], name: str) -> Callable[[Progress], Any]:
    """Work that goes on, a replay every 10 ms, until its gate opens."""

    def work(progress: Progress) -> str:
        log.append(f"{name} begins")
        while not gate.is_set():
            progress(1, 2)
            time.sleep(0.01)
        log.append(f"{name} ends")
        return name

    return work


def keep_asking(jobs: WhatifJobs, *idents: str, until: threading.Event) -> None:
    deadline = time.monotonic() + 10
    while not until.is_set() and time.monotonic() < deadline:
        for ident in idents:
            jobs.scan(ident)
        time.sleep(0.02)
    assert until.is_set()


def test_one_runs_at_a_time_and_others_know_their_place(jobs: WhatifJobs) -> None:
    gate, log = threading.Event(), []
    first = jobs.ask(["a"], gated(gate, log, "a"))
    second = jobs.ask(["b"], gated(gate, log, "b"))
    third = jobs.ask(["c"], gated(gate, log, "c"))
    while first.state == "waiting":
        time.sleep(0.005)
    assert [jobs.place(job) for job in (first, second, third)] == [0, 1, 2]
    assert jobs.ask(["b"], gated(gate, log, "never")) is second
    gate.set()
    keep_asking(jobs, first.id, second.id, third.id, until=third.finished)
    assert log == ["a begins", "a ends", "b begins", "b ends", "c begins", "c ends"]
    assert jobs.ask(["a"], gated(gate, log, "again")).result == "a", "kept"


def test_what_nobody_asks_for_is_given_up(jobs: WhatifJobs) -> None:
    log: list[str] = []
    never, now = threading.Event(), threading.Event()
    now.set()
    running = jobs.ask(["left"], gated(never, log, "left"))
    behind = jobs.ask(["waits"], gated(now, log, "waits"))
    keep_asking(jobs, behind.id, until=behind.finished)
    assert (running.state, behind.state, log[0], "left ends" in log) == ("failed", "done", "left begins", False)
    assert isinstance(running.error, GivenUp)
    assert jobs.scan(running.id) is None


def test_whoever_waits_for_a_job_wants_it(jobs: WhatifJobs) -> None:
    """However long: an answer that waits in one call says nothing meanwhile."""
    gate = threading.Event()
    job = jobs.ask(["slow"], gated(gate, [], "slow"))
    threading.Timer(1.0, gate.set).start()
    assert jobs.wait(job, 5)
    assert (job.state, job.result, job.given_up) == ("done", "slow", False)
    left = jobs.ask(["left"], gated(threading.Event(), [], "left"))
    assert not jobs.wait(left, 0.01)
    assert left.finished.wait(5)
    assert left.given_up, "by then nobody had waited for long enough"


def test_a_fault_fails_one_job_and_may_be_asked_again(jobs: WhatifJobs) -> None:
    def fails(_: Progress) -> Any:
        raise ValueError("cannot be")

    job = jobs.ask(["x"], fails)
    assert job.finished.wait(5)
    assert (job.state, str(job.error)) == ("failed", "cannot be")
    again = jobs.ask(["x"], lambda _: 5)
    assert again.finished.wait(5)
    assert again.result == 5


def test_so_many_wait_and_so_many_results_are_kept(jobs: WhatifJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "KEPT", 3)
    monkeypatch.setattr(room, "MAX_WAITING", 2)
    for number in range(6):
        assert jobs.ask([number], lambda _: 0).finished.wait(5)
    assert len(jobs._jobs) <= 4
    gate = threading.Event()
    first = jobs.ask(["first"], gated(gate, [], "first"))
    while first.state == "waiting":
        time.sleep(0.005)
    for number in range(2):
        jobs.ask(["more", number], gated(gate, [], "more"))
    with pytest.raises(TooMany):
        jobs.ask(["one too many"], gated(gate, [], "more"))
    gate.set()


def test_closing_ends_what_runs() -> None:
    jobs = WhatifJobs()
    job = jobs.ask(["x"], gated(threading.Event(), [], "x"))
    while job.state == "waiting":
        time.sleep(0.005)
    started = time.monotonic()
    jobs.close()
    assert time.monotonic() - started < 2
    assert job.finished.is_set()
