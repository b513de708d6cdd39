"""Begin and end of a session with its process: an uncaught exception, an exit code, the interpreter's exit.

In a notebook an exception ends a cell, not the run. No signal handler is installed, because it would change how the
training dies. SIGINT raises a KeyboardInterrupt and is seen as an exception. After SIGTERM or SIGKILL the server sees no
more signals and calls the run lost; at most one flush is missing.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from vramscope.guard import first_line, guarded
from vramscope.process.exit_code import ExitWatch
from vramscope.process.notebook import watch_cells


class LifecycleListener(Protocol):
    def end(self, error_type: str | None = None, error_line: str | None = None) -> None: ...
    def failing(self, fault: BaseException) -> None: ...
    def cell_failed(self, error_type: str, error_line: str, cell: int | None) -> None: ...


class Lifecycle:
    """Ties a session to its process. ``begin`` once; ``release`` when the session ended by itself."""

    def __init__(self, session: LifecycleListener) -> None:
        self._session = weakref.ref(session)
        self._pid = os.getpid()
        self._previous_hook = sys.excepthook
        self._failure: tuple[str, str] | None = None
        self._exits = ExitWatch()
        self._unwatch_cells: Callable[[], None] = lambda: None

    def begin(self) -> None:
        self._previous_hook = sys.excepthook
        sys.excepthook = self._excepthook
        self._exits.begin()
        self._unwatch_cells = watch_cells(self._cell_failed)
        atexit.register(self._at_exit)

    def release(self) -> None:
        if sys.excepthook == self._excepthook:
            sys.excepthook = self._previous_hook
        self._exits.release()
        self._unwatch_cells()
        atexit.unregister(self._at_exit)

    def _excepthook(self, kind: type[BaseException], fault: BaseException, frames: TracebackType | None) -> None:
        with guarded("recording how the run ended"):
            self._failure = (kind.__name__, first_line(fault))  # text only: the frames retain the user's tensors
        self._previous_hook(kind, fault, frames)
        with guarded("recording an out-of-memory error"):
            session = self._session()
            if session is not None and os.getpid() == self._pid:
                session.failing(fault)

    def _cell_failed(self, error_type: str, error_line: str, cell: int | None) -> None:
        session = self._session()
        if session is not None:
            session.cell_failed(error_type, error_line, cell)
        self._exits.forget()  # sys.exit() in a cell ends only the cell

    @guarded("the end of the session")
    def _at_exit(self) -> None:
        session = self._session()
        if session is not None and os.getpid() == self._pid:
            session.end(*(self._failure or self._exits.failure or (None, None)))
