"""Logs the figures in all active trackers every two seconds. Each tracker has its own thread, because it may wait for a network.

A thread starts once the program has imported its tool. One more thread checks for imports.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from vramscope.guard import guarded
from vramscope.protocol import messages
from vramscope.settings import Settings
from vramscope.steps.records import StepRecord
from vramscope.trackers.aim_run import AimRun
from vramscope.trackers.clearml_task import ClearmlTask
from vramscope.trackers.comet_experiment import CometExperiment
from vramscope.trackers.figures import PREFIX, StepFigures
from vramscope.trackers.mlflow_run import MlflowRun
from vramscope.trackers.neptune_run import NeptuneRun
from vramscope.trackers.post_mortem import post_mortem_file
from vramscope.trackers.swanlab_run import SwanlabRun
from vramscope.trackers.tensorboard_writer import TensorboardWriter
from vramscope.trackers.tracker import Tracker
from vramscope.trackers.trackio_run import TrackioRun
from vramscope.trackers.wandb_run import WandbRun

FIRST_S: Final = 0.25
"""Wait before the first search; each later one is twice as long, up to PERIOD_S."""
PERIOD_S: Final = 2.0
END_S: Final = 2.0
"""Maximum time that the end of the session waits for the trackers."""
FILE_S: Final = 20.0
"""Maximum time in which a file is attached."""
TRACKERS: Final[tuple[type[Tracker], ...]] = (
    WandbRun, MlflowRun, TensorboardWriter, TrackioRun, CometExperiment, NeptuneRun, ClearmlTask, AimRun, SwanlabRun,
)  # fmt: skip


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
        self._verdict = ""
        self._stop = threading.Event()
        self._begin_imported = guarded("the search for trackers")(self._begin_imported_once)
        self._search = threading.Thread(target=self._search_imports, name="vramscope-trackers", daemon=True)

    def start(self) -> None:
        """Begin to search for active trackers."""
        if self._threads:
            self._search.start()

    def put(self, steps: Sequence[StepRecord]) -> None:
        """Note steps that have ended. On the sampler's thread; about 1 µs for each step and tracker that is imported."""
        for thread in self._threads:
            if thread.is_imported:
                thread.figures.put(steps)

    def stop(self, verdict: str = "") -> None:
        """Log the last figures, and the cause of an out-of-memory error. Waits for at most END_S."""
        until = time.monotonic() + END_S
        self._verdict = verdict
        self._stop.set()
        if self._search.is_alive():
            self._search.join(END_S)
        for thread in self._threads:
            thread.end_with(verdict)
        for thread in self._threads:
            thread.wait(until - time.monotonic())

    @property
    def takes_files(self) -> bool:
        """Whether a tracker that takes files was active."""
        return any(thread.is_linked and thread.takes_files for thread in self._threads)

    def add_file(self, path: Path) -> None:
        """Attach a file to the active runs, after :meth:`stop`. Waits for at most FILE_S."""
        until = time.monotonic() + FILE_S
        adding = [
            threading.Thread(target=thread.add_file, args=(path,), name=f"vramscope-{thread.name}-file", daemon=True)
            for thread in self._threads
            if thread.is_linked and thread.takes_files
        ]
        for one in adding:
            one.start()
        for one in adding:
            one.join(max(0.0, until - time.monotonic()))

    def add_post_mortem(self, settings: Settings, run_id: str) -> None:
        """Attach the report of a run that ended out of memory to the active runs. Call it once the server has all data."""
        if self._verdict and self.takes_files:
            with guarded("the post-mortem"), post_mortem_file(settings, run_id) as path:
                if path is not None:
                    self.add_file(path)

    def wait(self, seconds: float) -> None:
        """Wait until all that was found is logged. For tests."""
        for thread in self._threads:
            thread.wait(seconds)

    def _search_imports(self) -> None:
        wait_s, last = FIRST_S, False
        while not last:
            last = self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, PERIOD_S)
            self._begin_imported()

    def _begin_imported_once(self) -> None:
        for thread in self._threads:
            thread.begin_if_imported()


class TrackerThread:
    """Logs in one tracker."""

    def __init__(self, tracker: Tracker, figures: StepFigures, url: str, link: Callable[[str], None]) -> None:
        self.figures = figures
        self.name, self.takes_files = tracker.name, tracker.takes_files
        self.is_linked = False
        """Whether an active run was found."""
        self._tracker, self._url, self._link = tracker, url, link
        self._is_begun = False
        self._verdict = ""
        self._stop = threading.Event()
        self._log = guarded(f"the mirror to {tracker.title}")(self._log_once)
        self.add_file = guarded(f"the file for {tracker.title}")(self._add_file)
        self._thread = threading.Thread(target=self._run, name=f"vramscope-{tracker.name}", daemon=True)

    @property
    def is_imported(self) -> bool:
        """Whether the program has imported the tool. Before that it has no active run."""
        return any(name in sys.modules for name in self._tracker.modules)

    def begin_if_imported(self) -> None:
        """Start once the program has imported the tool."""
        if not self._is_begun and self.is_imported:
            self._is_begun = True
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

    def _add_file(self, path: Path) -> None:
        try:
            if self._tracker.find():
                self._tracker.add_file(path)
        finally:
            self._tracker.release()

    def _log_once(self) -> None:
        if not self._tracker.find():
            return
        try:
            if not self.is_linked:
                self.is_linked = True
                self._tracker.note(f"{PREFIX}url", self._url)
                address = self._tracker.address()
                self._link(f"{self._tracker.title}: {address}" if address else self._tracker.title)
            if (figures := self.figures.take()) is not None:
                self._tracker.log(figures.values, figures.step)
            if self._verdict:
                self._tracker.note(f"{PREFIX}out_of_memory", self._verdict)
        finally:
            self._tracker.release()
