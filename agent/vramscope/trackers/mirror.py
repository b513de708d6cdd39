"""Logs the figures in the trackers that are active, every two seconds, each on a thread of its own: it may wait for a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from vramscope.guard import guarded
from vramscope.protocol import messages
from vramscope.steps.records import StepRecord
from vramscope.trackers.figures import PREFIX, StepFigures
from vramscope.trackers.mlflow_run import MlflowRun
from vramscope.trackers.tensorboard_writer import TensorboardWriter
from vramscope.trackers.tracker import Tracker
from vramscope.trackers.wandb_run import WandbRun

FIRST_S: Final = 0.25
"""Wait before the first search; each later one is twice as long, up to PERIOD_S."""
PERIOD_S: Final = 2.0
END_S: Final = 2.0
"""Maximum time that the end of the session waits for the trackers."""
TRACKERS: Final[tuple[type[Tracker], ...]] = (WandbRun, MlflowRun, TensorboardWriter)


class TrackerMirror:
    """One a session.

    names   trackers to use, of those that are active; the program begins their runs
    url     page of the run
    put     takes the event that links to a tracker's run
    hide    replaces secrets in a text
    """

    def __init__(
        self,
        names: Sequence[str],
        url: str,
        put: Callable[[messages.Event], object],
        leaks: Callable[[], Sequence[messages.Leak]],
        hide: Callable[[str], str],
    ) -> None:
        def link(text: str) -> None:
            put(messages.Event(time_ns=time.time_ns(), kind="tracker", step=None, data={"text": hide(text)}))

        self._threads = [
            TrackerThread(kind(), StepFigures(leaks), url, link) for kind in TRACKERS if kind.name in names
        ]

    def start(self) -> None:
        """Begin to search for active trackers."""
        for thread in self._threads:
            thread.start()

    def put(self, steps: Sequence[StepRecord]) -> None:
        """Note steps that have ended. On the sampler's thread; about 1 µs for each step and tracker."""
        for thread in self._threads:
            thread.figures.put(steps)

    def stop(self, verdict: str = "") -> None:
        """Log the last figures, and the cause of an out-of-memory error. Waits for at most END_S."""
        until = time.monotonic() + END_S
        for thread in self._threads:
            thread.end_with(verdict)
        for thread in self._threads:
            thread.wait(until - time.monotonic())

    def wait(self, seconds: float) -> None:
        """Wait until all that was found is logged. For tests."""
        for thread in self._threads:
            thread.wait(seconds)


class TrackerThread:
    """Logs in one tracker."""

    def __init__(self, tracker: Tracker, figures: StepFigures, url: str, link: Callable[[str], None]) -> None:
        self.figures = figures
        self._tracker, self._url, self._link = tracker, url, link
        self._is_linked = False
        self._verdict = ""
        self._stop = threading.Event()
        self._log = guarded(f"the mirror to {tracker.title}")(self._log_once)
        self._thread = threading.Thread(target=self._run, name=f"vramscope-{tracker.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end_with(self, verdict: str) -> None:
        """Log once more, and end."""
        self._verdict = verdict
        self._stop.set()

    def wait(self, seconds: float) -> None:
        if self._thread.is_alive():
            self._thread.join(max(0.0, seconds))
        with guarded(f"the end of {self._tracker.title}"):
            self._tracker.remove()

    def _run(self) -> None:
        last, wait_s = False, FIRST_S
        while not last:
            last = self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, PERIOD_S)
            self._log()

    def _log_once(self) -> None:
        if not self._tracker.find():
            return
        try:
            if not self._is_linked:
                self._is_linked = True
                self._tracker.note(f"{PREFIX}url", self._url)
                address = self._tracker.address()
                self._link(f"{self._tracker.title}: {address}" if address else self._tracker.title)
            if (figures := self.figures.take()) is not None:
                self._tracker.log(figures.values, figures.step)
            if self._verdict:
                self._tracker.note(f"{PREFIX}out_of_memory", self._verdict)
        finally:
            self._tracker.release()
