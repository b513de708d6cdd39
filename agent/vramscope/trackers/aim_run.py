"""Aim: the run on which the program tracked a value last, at the step of that value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramscope.trackers.noted_calls import Method, NotedCalls


class AimRun:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "aim"
    title = "Aim"
    modules: tuple[str, ...] = ("aim.sdk.run",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._calls = NotedCalls([Method("aim.sdk.run", "BasicRun", "track", 3)])
        self._run: Any = None

    def find(self) -> bool:
        self._run = self._calls.find()
        return getattr(self._run, "_resources", None) is not None  # a closed run has none

    def log(self, values: Mapping[str, float], step: int) -> None:
        at = step if self._calls.step is None else self._calls.step
        for name, value in values.items():
            self._run.track(value, name=name, step=at)

    def note(self, name: str, text: str) -> None:
        self._run[name] = text

    def add_file(self, path: Path) -> bool:
        if self._run.artifacts_uri is None:
            return False  # the program has named no store for files
        self._run.log_artifact(str(path), name=path.name, block=True)
        return True

    def address(self) -> str:
        return f"run {self._run.hash}"

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        self._calls.remove()
