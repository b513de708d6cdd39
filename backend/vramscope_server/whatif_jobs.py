"""What-if jobs: one thread replays recordings under other settings, one job after the other.

A job is identified by its question: the same question joins it while it runs, and gets the stored result later. A job
that nobody asked for in :data:`ABANDONED_SECONDS` is given up between two replays, unless its result is to be kept.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from vramscope.protocol.window import BadWindow
from vramscope_server.analysis.simulator.settings import NotReplayable

log = logging.getLogger("vramscope_server.whatif_jobs")

ABANDONED_SECONDS: Final = 15.0
KEPT: Final = 200
MAX_WAITING: Final = 20

State = Literal["waiting", "running", "done", "failed"]
Progress = Callable[[int, int], None]
Work = Callable[[Progress], Any]


class TooMany(Exception):
    """Too many jobs wait."""


class GivenUp(Exception):
    """Nobody waits for the job any more, or the server shuts down."""


@dataclass(eq=False)
class Job:
    """A question. ``done`` of ``total`` replays are finished; 0 of 0 while that is unknown."""

    id: str
    question: Sequence[Any]
    work: Work
    asked_at: float
    state: State = "waiting"
    done: int = 0
    total: int = 0
    result: Any = None
    error: Exception | None = None
    seconds: float | None = None
    """Duration, once it is done."""
    finished: threading.Event = field(default_factory=threading.Event)
    awaited: int = 0
    """Number of threads in :meth:`WhatifJobs.wait`."""
    is_kept: bool = False
    """Once it runs, it runs to its end. Otherwise commands that ask from time to time would start it again and again."""

    @property
    def given_up(self) -> bool:
        """Whether it was given up, because nobody asked for it; the same question restarts it."""
        return isinstance(self.error, GivenUp)


class WhatifJobs:
    """Started by the first job; :meth:`close` when the server shuts down. Any thread may call it."""

    def __init__(self, *, abandoned_seconds: float = ABANDONED_SECONDS) -> None:
        self._abandoned_seconds = abandoned_seconds
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def ask(self, question: Sequence[Any], work: Work, *, keep: bool = False) -> Job:
        """Job for this question (anything that JSON can express); started if it is new. Raises TooMany.

        keep   run it to its end, and do not start it again if it failed
        """
        ident = hashlib.sha256(msgspec.json.encode(question)).hexdigest()[:16]
        with self._changed:
            job = self._jobs.get(ident)
            if job is None or (job.state == "failed" and not keep):
                if len(self._waiting) >= MAX_WAITING:
                    raise TooMany
                job = Job(ident, question, work, time.monotonic())
                self._jobs[ident] = job
                self._waiting.append(job)
                self._forget()
                if self._thread is None and not self._closing:
                    self._thread = threading.Thread(target=self._run, name="vramscope-sweeps", daemon=True)
                    self._thread.start()
                self._changed.notify()
            job.is_kept |= keep
            self._touch(job)
        return job

    def scan(self, ident: str) -> Job | None:
        """Job with this id, which counts as wanted; None if it was given up or is unknown."""
        with self._changed:
            job = self._jobs.get(ident)
            if job is not None:
                self._touch(job)
        return job

    def wait(self, job: Job, seconds: float) -> bool:
        """Wait until it is settled, up to a limit. Returns whether it is."""
        with self._changed:
            job.awaited += 1
        try:
            return job.finished.wait(seconds)
        finally:
            with self._changed:
                job.awaited -= 1
                job.asked_at = time.monotonic()

    def place(self, job: Job) -> int:
        """Number of jobs before a waiting one, the running one included; 0 for all others."""
        with self._changed:
            if job not in self._waiting:
                return 0
            running = any(other.state == "running" for other in self._jobs.values())
            return self._waiting.index(job) + int(running)

    def close(self) -> None:
        """Give up all jobs."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(5)

    def _touch(self, job: Job) -> None:
        job.asked_at = time.monotonic()
        self._jobs.move_to_end(job.id)

    def _forget(self) -> None:
        settled = [job.id for job in self._jobs.values() if job.finished.is_set()]
        for ident in settled[: max(0, len(self._jobs) - KEPT)]:
            del self._jobs[ident]

    def _wanted(self, job: Job) -> bool:
        asked = (
            (job.is_kept and job.state == "running")
            or job.awaited > 0
            or time.monotonic() - job.asked_at < self._abandoned_seconds
        )
        return asked and not self._closing

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                job = self._waiting.pop(0)
                if not self._wanted(job):
                    self._give_up(job)
                    continue
                job.state = "running"
            self._do(job)

    def _do(self, job: Job) -> None:
        def progress(done: int, total: int) -> None:
            job.done, job.total = done, total
            if not self._wanted(job):
                raise GivenUp

        started = time.monotonic()
        try:
            job.result = job.work(progress)
            job.seconds = time.monotonic() - started
            job.state = "done"
        except GivenUp:
            with self._changed:
                self._give_up(job)
            return
        except Exception as error:  # becomes the job's own error, which its asker gets
            if not isinstance(error, BadWindow | NotReplayable):
                log.exception("a what-if failed")
            job.error = error
            job.state = "failed"
        job.finished.set()

    def _give_up(self, job: Job) -> None:
        self._jobs.pop(job.id, None)
        job.state = "failed"
        job.error = GivenUp("nobody asked for it any more")
        job.finished.set()
