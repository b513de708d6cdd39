"""SwanLab: the active run of ``swanlab.init()``, at its newest step, which stays as it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class SwanlabRun:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "swanlab"
    title = "SwanLab"
    modules: tuple[str, ...] = ("swanlab",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._run: Any = None

    def find(self) -> bool:
        swanlab = sys.modules.get("swanlab")
        has_run = getattr(swanlab, "has_run", None)
        self._run = swanlab.get_run() if swanlab is not None and has_run is not None and has_run() else None
        return self._run is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        # Without a step, SwanLab would count one more.
        self._run.log(dict(values), step=self._run._ctx._global_step)

    def note(self, name: str, text: str) -> None:
        self._run.config[name] = text

    def add_file(self, path: Path) -> bool:
        return bool(self._run.save(str(path), base_path=str(path.parent), policy="now"))

    def address(self) -> str:
        return str(self._run.url or "") if self._run.mode == "online" else str(self._run.dir)

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        pass
