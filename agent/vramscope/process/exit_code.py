"""Detects the exit code of the program: ``sys.exit(7)``, ``exit()`` and ``quit()``, unless the exception is caught.

Python reports no SystemExit: no excepthook is called for it, and it no longer exists when exit handlers run. So the functions
that raise it are wrapped. An explicit ``raise SystemExit(7)`` and ``os._exit`` are not detected. In an exit handler neither
``sys.last_value`` nor ``sys.exc_info`` has the exception (3.10 to 3.13), and its traceback is gone. The module's frame would
show the exit but not the code, so each ``raise SystemExit(main())`` would count as a failure.
"""

from __future__ import annotations

import _sitebuiltins
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from vramscope.guard import first_line, guarded
from vramscope.process.patching import Patches


def failure_of(fault: BaseException) -> tuple[str, str] | None:
    """Return type and first line of an exception. Returns None for an exit with code 0, and for the end of a generator."""
    if isinstance(fault, GeneratorExit):
        return None
    if not isinstance(fault, SystemExit):
        return type(fault).__name__, first_line(fault)
    code = fault.code
    if code is None or code == 0:
        return None
    return "SystemExit", f"exit code {int(code)}" if isinstance(code, int) else first_line(fault)


class _ExitMarker:
    """Object in a frame of the SystemExit's traceback. It lives as long as the traceback."""

    __slots__ = ("__weakref__",)


class ExitWatch:
    """Watches exits. Call ``begin`` once. In an exit handler, ``failure`` is set if the program ends with an error."""

    def __init__(self) -> None:
        self.failure: tuple[str, str] | None = None
        """Type and text of the newest uncaught exit whose code is not 0."""
        self._marker: weakref.ref[_ExitMarker] | None = None
        self._patches = Patches()

    def begin(self) -> None:
        self._wrap(sys, "exit")
        self._wrap(_sitebuiltins.Quitter, "__call__")  # the type of exit() and quit()

    def release(self) -> None:
        self._patches.remove()

    def forget(self) -> None:
        """Forget the exit, because the exception was caught."""
        self.failure = self._marker = None

    def _wrap(self, owner: Any, name: str) -> None:
        record = guarded("recording how the program ends")(self._record)

        def exit_function(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            try:
                original(*args, **kwargs)
            except SystemExit as exit_error:
                _marker = record(exit_error)
                raise

        self._patches.wrap(owner, name, exit_function)

    def _record(self, exit_error: SystemExit) -> _ExitMarker | None:
        if threading.current_thread() is not threading.main_thread():
            return None  # it ends only that thread
        self.failure = failure_of(exit_error)
        kept = _ExitMarker()
        self._marker = weakref.ref(kept, self._dropped)
        return kept

    def _dropped(self, exit_error: weakref.ref[_ExitMarker]) -> None:
        """Handle the end of the exception. If any Python code still runs, it was caught; at the interpreter's end none
        does."""
        if exit_error is self._marker and _called_from_python():
            self.forget()


def _called_from_python() -> bool:
    try:
        sys._getframe(2)  # the caller that dropped the last reference, above the callback
    except ValueError:
        return False
    return True
