"""Progress line on stderr for work that takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
from rich.text import Text

QUIET_SECONDS: Final = 2.0
COMPILING: Final = "compiling (once per installation)"


class Bar:
    """Progress bar: ``with Bar("reading") as report``, then ``report(done, total)`` if known.

    A bar inside another one shows nothing.
    """

    _outermost: Bar | None = None

    def __init__(self, words: str, *, of_bytes: bool = True) -> None:
        self._words = words
        self._amounts = DownloadColumn(binary_units=True) if of_bytes else MofNCompleteColumn()
        self._progress: Progress | None = None
        self._reported: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._waiting = threading.Timer(QUIET_SECONDS, self._show)

    def __enter__(self) -> Callable[[int, int], None]:
        self._waiting.daemon = True
        if Bar._outermost is None:
            Bar._outermost = self
            if sys.stderr.isatty():
                self._waiting.start()
        return self._report

    def _show(self) -> None:
        with self._lock:
            if self._waiting.finished.is_set():
                return
            columns = _Doing(), BarColumn(), _Amounts(self._amounts)
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            done, total = self._reported or (0, None)
            self._task = self._progress.add_task(self._words, total=total, completed=done)
            self._progress.start()

    def _report(self, done: int, total: int) -> None:
        with self._lock:
            self._reported = done, total
            if self._progress is not None:
                self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._waiting.cancel()
        if Bar._outermost is self:
            Bar._outermost = None
        with self._lock:
            if self._progress is not None:
                self._progress.stop()


def compiling() -> bool:
    """Return True while this process compiles machine code."""
    module = sys.modules.get("vramscope_server.analysis.numba_compile")  # imported lazily: takes half a second
    return module is not None and module.compiling()


class _Doing(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(COMPILING if compiling() else task.description)


class _Amounts(ProgressColumn):
    """Column with the amounts, once the total is known."""

    def __init__(self, column: ProgressColumn) -> None:
        super().__init__()
        self._column = column

    def render(self, task: Task) -> Text:
        return Text() if task.total is None else Text(str(self._column.render(task)))
