"""Comet: the running experiment, at its current step, which stays as it is."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CometExperiment:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "comet"
    title = "Comet"
    modules: tuple[str, ...] = ("comet_ml",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._run: Any = None

    def find(self) -> bool:
        running = getattr(sys.modules.get("comet_ml"), "get_running_experiment", None)
        self._run = None if running is None else running()
        return self._run is not None and bool(self._run.alive)

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log_metrics(dict(values), step=self._run.curr_step)

    def note(self, name: str, text: str) -> None:
        self._run.log_other(name, text)

    def add_file(self, path: Path) -> bool:
        # An open file is copied at once. A path would be read when it is uploaded.
        self._run.log_asset(io.BytesIO(path.read_bytes()), file_name=path.name)
        return True

    def address(self) -> str:
        return str(getattr(self._run, "url", None) or "")

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        pass
