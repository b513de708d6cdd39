"""Logs the figures in the trackers that are active, every two seconds, on a thread of its own: a tracker may wait for a network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from vramscope.guard import guarded
from vramscope.protocol import messages
from vramscope.trackers.figures import PREFIX, StepFigures
from vramscope.trackers.mlflow_run import MlflowRun
from vramscope.trackers.tensorboard_writer import TensorboardWriter
from vramscope.trackers.tracker import Tracker
from vramscope.trackers.wandb_run import WandbRun

FIRST_S: Final = 0.25
"""Wait before the first search; each later one is twice as long, up to PERIOD_S."""
PERIOD_S: Final = 2.0
END_S: Final = 2.0
"""Maximum time that the end of the session waits for a tracker."""
TRACKERS: Final[tuple[type[Tracker], ...]] = (WandbRun, MlflowRun, TensorboardWriter)


class TrackerMirror:
    """One a session.

    names   trackers to use, of those that are active; the program begins them
    url     page of the run
    put     takes the event that links to a tracker's run
    """

    def __init__(
        self,
        names: Sequence[str],
        url: str,
        put: Callable[[messages.Event], object],
        leaks: Callable[[], Sequence[messages.Leak]],
    ) -> None:
        self.figures = StepFigures(leaks)
        self._url, self._put = url, put
        self._trackers = [kind() for kind in TRACKERS if kind.name in names]
        self._linked: set[str] = set()
        self._verdict = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-trackers", daemon=True)

    def start(self) -> None:
        """Begin, unless no tracker is wanted."""
        if self._trackers:
            self._thread.start()

    def stop(self, verdict: str = "") -> None:
        """Log the last figures, and what is said of an out-of-memory error. Waits for at most END_S."""
        self._verdict = verdict
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(END_S)
        for tracker in self._trackers:
            with guarded(f"the end of {tracker.title}"):
                tracker.remove()

    @guarded("the trackers' thread")
    def _run(self) -> None:
        last, wait_s = False, FIRST_S
        while not last:
            last = self._stop.wait(wait_s)
            wait_s = min(2 * wait_s, PERIOD_S)
            self._log()

    def _log(self) -> None:
        active = [tracker for tracker in self._trackers if self._is_active(tracker)]
        figures = self.figures.take() if active else None
        for tracker in active:
            with guarded(f"the mirror to {tracker.title}"):
                if tracker.name not in self._linked:
                    self._link(tracker)
                if figures is not None:
                    tracker.log(figures.values, figures.step)
                if self._verdict:
                    tracker.note(f"{PREFIX}out_of_memory", self._verdict)

    def _is_active(self, tracker: Tracker) -> bool:
        with guarded(f"the search for {tracker.title}"):
            return tracker.find()
        return False

    def _link(self, tracker: Tracker) -> None:
        self._linked.add(tracker.name)
        tracker.note(f"{PREFIX}url", self._url)
        text = f"{tracker.title}: {address}" if (address := tracker.address()) else tracker.title
        self._put(messages.Event(time_ns=time.time_ns(), kind="tracker", step=None, data={"text": text}))
