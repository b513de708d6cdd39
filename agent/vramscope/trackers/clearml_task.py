"""ClearML: the main task of ``Task.init()``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ClearmlTask:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "clearml"
    title = "ClearML"
    modules: tuple[str, ...] = ("clearml.task",)
    takes_files: bool = True

    def __init__(self) -> None:
        self._task: Any = None

    def find(self) -> bool:
        # Task.current_task() may start a task of its own in a child process.
        self._task = getattr(getattr(sys.modules.get("clearml.task"), "Task", None), "_Task__main_task", None)
        return self._task is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        logger = self._task.get_logger()
        for name, value in values.items():
            title, _, series = name.partition("/")
            logger.report_scalar(title, series, value, iteration=step)

    def note(self, name: str, text: str) -> None:
        self._task.set_user_properties(**{name.replace("/", "_"): text})

    def add_file(self, path: Path) -> bool:
        return bool(self._task.upload_artifact(path.stem, str(path), wait_on_upload=True))

    def address(self) -> str:
        return str(self._task.get_output_log_web_page() or "")

    def release(self) -> None:
        self._task = None

    def remove(self) -> None:
        pass
