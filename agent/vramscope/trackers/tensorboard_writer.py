"""TensorBoard: the ``SummaryWriter`` of PyTorch or tensorboardX that the program used last, at the step that it gave.

Nothing lists the writers of a process. So ``add_scalar`` notes its writer, in less than 1 µs; the program's own call is made
as it was.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any, Final

from vramscope.process.patching import Patches

MODULES: Final = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


class TensorboardWriter:
    """See :class:`vramscope.trackers.tracker.Tracker`."""

    name = "tensorboard"
    title = "TensorBoard"

    def __init__(self) -> None:
        self._patches = Patches()
        self._patched: set[str] = set()
        self._newest: weakref.ref[Any] | None = None
        self._step: int | None = None
        self._writer: Any = None
        self._file: Any = None
        """The writer's open file. A closed one refuses to write, while the writer itself would open another file."""

    def find(self) -> bool:
        for name in MODULES:
            if name not in self._patched and (kind := getattr(sys.modules.get(name), "SummaryWriter", None)):
                self._patched.add(name)
                self._patches.wrap(kind, "add_scalar", self._noting)
        self._writer = None if self._newest is None else self._newest()
        self._file = getattr(self._writer, "file_writer", None)
        return self._file is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        at = step if self._step is None else self._step
        for name, value in values.items():
            self._file.add_summary(self._summary().scalar(name, value), at)

    def note(self, name: str, text: str) -> None:
        self._file.add_summary(self._summary().text(name, text), self._step)

    def address(self) -> str:
        return str(getattr(self._writer, "log_dir", None) or getattr(self._writer, "logdir", ""))

    def release(self) -> None:
        self._writer = self._file = None

    def remove(self) -> None:
        self._patches.remove()

    def _summary(self) -> Any:
        """The module that makes the records, of the package that has the writer's class."""
        modules = [base.__module__ for base in type(self._writer).__mro__]
        package = next(module for module in modules if module in MODULES).rpartition(".")[0]
        return sys.modules[f"{package}.summary"]

    def _noting(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        newest = None if self._newest is None else self._newest()
        if args and args[0] is not newest:
            self._newest = weakref.ref(args[0])
        step = args[3] if len(args) > 3 else kwargs.get("global_step")
        # (A tensor would be kept alive, and to read it could wait for the GPU.)
        self._step = int(step) if isinstance(step, Integral) else None
        return original(*args, **kwargs)
