"""TensorBoard: the ``SummaryWriter`` of PyTorch or tensorboardX that the program used last, at its last step."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vramscope.trackers.noted_calls import Method, NotedCalls


class TensorboardWriter:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "tensorboard"
    title = "TensorBoard"
    modules: tuple[str, ...] = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
    takes_files: bool = False

    def __init__(self) -> None:
        self._calls = NotedCalls(
            [Method(module, "SummaryWriter", "add_scalar", 3, "global_step") for module in self.modules]
        )
        self._writer: Any = None
        self._file: Any = None
        """The writer's open file. A closed one refuses to write, while the writer itself would open another file."""

    def find(self) -> bool:
        self._writer = self._calls.find()
        self._file = getattr(self._writer, "file_writer", None)
        return self._file is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        at = step if self._calls.step is None else self._calls.step
        for name, value in values.items():
            self._file.add_summary(self._summary().scalar(name, value), at)

    def note(self, name: str, text: str) -> None:
        self._file.add_summary(self._summary().text(name, text), self._calls.step)

    def add_file(self, path: Path) -> bool:
        return False

    def address(self) -> str:
        return str(getattr(self._writer, "log_dir", None) or getattr(self._writer, "logdir", ""))

    def release(self) -> None:
        self._writer = self._file = None

    def remove(self) -> None:
        self._calls.remove()

    def _summary(self) -> Any:
        """The module that makes the records, of the package that has the writer's class."""
        modules = [base.__module__ for base in type(self._writer).__mro__]
        package = next(module for module in modules if module in self.modules).rpartition(".")[0]
        return sys.modules[f"{package}.summary"]
