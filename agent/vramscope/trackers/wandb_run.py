"""Weights & Biases: the active run of ``wandb.init()`` in this process.

Numbers join the row that the program's next ``log()`` ends, so that its step numbers stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class WandbRun:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "wandb"
    title = "W&B"
    modules: tuple[str, ...] = ("wandb",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._run: Any = None

    def find(self) -> bool:
        self._run = getattr(sys.modules.get("wandb"), "run", None)
        return self._run is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log(dict(values), commit=False)

    def note(self, name: str, text: str) -> None:
        self._run.summary[name] = text

    def add_file(self, path: Path) -> bool:
        artifact = sys.modules["wandb"].Artifact(f"vramscope-{self._run.id}", type="report")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)
        return True

    def address(self) -> str:
        return str(getattr(self._run, "url", None) or "")

    def release(self) -> None:
        self._run = None

    def remove(self) -> None:
        pass
