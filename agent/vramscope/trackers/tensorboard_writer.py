"""TensorBoard: the ``SummaryWriter`` of PyTorch or tensorboardX that the program used last, at the step that it gave.

Nothing lists the writers of a process. So ``add_scalar`` notes its writer, in less than 1 µs; the program's own call is made
as it was.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
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
        self._step: object = None
        self._writer: Any = None

    def find(self) -> bool:
        for name in MODULES:
            if name not in self._patched and (kind := getattr(sys.modules.get(name), "SummaryWriter", None)):
                self._patched.add(name)
                self._patches.wrap(kind, "add_scalar", self._noting)
        writer = None if self._newest is None else self._newest()
        # (A closed one would open a new file.)
        self._writer = writer if getattr(writer, "file_writer", None) is not None else None
        return self._writer is not None

    def log(self, values: Mapping[str, float], step: int) -> None:
        at = self._step if isinstance(self._step, int) else step
        for name, value in values.items():
            self._writer.add_scalar(name, value, at)

    def note(self, name: str, text: str) -> None:
        self._writer.add_text(name, text)

    def address(self) -> str:
        return str(getattr(self._writer, "log_dir", None) or getattr(self._writer, "logdir", ""))

    def remove(self) -> None:
        self._patches.remove()

    def _noting(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if args and args[0] is not self._writer_of_newest():
            self._newest = weakref.ref(args[0])
        self._step = args[3] if len(args) > 3 else kwargs.get("global_step")
        return original(*args, **kwargs)

    def _writer_of_newest(self) -> Any:
        return None if self._newest is None else self._newest()
