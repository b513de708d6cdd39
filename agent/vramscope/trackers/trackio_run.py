"""Trackio: the run on which the program logged last, at the step of that row.

``trackio.init()`` makes a run active in one context only, which other threads do not see.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramscope.trackers.noted_calls import Method, NotedCalls


class TrackioRun:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "trackio"
    title = "Trackio"
    modules: tuple[str, ...] = ("trackio.run",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._calls = NotedCalls([Method("trackio.run", "Run", "log")])
        self._run: Any = None

    def find(self) -> bool:
        self._run = self._calls.find()
        return self._run is not None and not self._run._stop_flag.is_set()

    def log(self, values: Mapping[str, float], step: int) -> None:
        # The step of the newest row. Without one, Trackio would count a step more.
        self._run.log(dict(values), step=self._run._next_step - 1)

    def note(self, name: str, text: str) -> None:
        self._run.log({name: text}, step=self._run._next_step - 1)

    def add_file(self, path: Path) -> bool:
        self._run.log_artifact(path, name=path.stem, type="report")
        return True

    def address(self) -> str:
        return f"{self._run.project}, run {self._run.name}"

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        self._calls.remove()
