"""Neptune: the run in which the program last named a field. Steps of a series rise, so each series has the optimizer's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramscope.trackers.noted_calls import Method, NotedCalls


class NeptuneRun:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "neptune"
    title = "Neptune"
    modules: tuple[str, ...] = ("neptune.metadata_containers.run",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._calls = NotedCalls([Method("neptune.metadata_containers.run", "Run", "__getitem__")])
        self._run: Any = None

    def find(self) -> bool:
        self._run = self._calls.find()
        return self._run is not None and self._run._state.value == "started"

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._run[name].append(value, step=step)

    def note(self, name: str, text: str) -> None:
        self._run[name] = text

    def add_file(self, path: Path) -> bool:
        self._run[f"vramscope/{path.stem}"].upload(str(path), wait=True)
        return True

    def address(self) -> str:
        return str(self._run.get_url() or "")

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        self._calls.remove()
