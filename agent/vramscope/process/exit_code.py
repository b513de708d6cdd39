"""Which code the program leaves with: ``sys.exit(7)``, ``exit()`` and ``quit()``, unless somebody catches that.

Python tells nobody of a SystemExit: no excepthook sees it, and it is gone when the exit handlers run. So the functions that
raise it are wrapped. A ``raise SystemExit(7)`` written out, and ``os._exit``, are not seen: of the first, ``sys.last_value`` and
``sys.exc_info`` say nothing in an exit handler (3.10 to 3.13), its traceback is gone with it, and the module's frame, had one kept
it, would tell that it was left but not with which code, so that ``raise SystemExit(main())`` would be a failure each time.
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


class _ExitMarker:
    """Lies in a frame of the SystemExit's traceback: it lives as long as that does."""

    __slots__ = ("__weakref__",)


class ExitWatch:
    """``begin`` once; ``failure`` says, in an exit handler, whether the program leaves with an error."""

    def __init__(self) -> None:
        self.failure: tuple[str, str] | None = None
        """type and words, where the newest exit that nobody caught has a code other than 0"""
        self._leaving: weakref.ref[_ExitMarker] | None = None
        self._fronts = Patches()

    def begin(self) -> None:
        self._front(sys, "exit")
        self._front(_sitebuiltins.Quitter, "__call__")  # what exit() and quit() are

    def release(self) -> None:
        self._fronts.remove()

    def forget(self) -> None:
        """Somebody caught it."""
        self.failure = self._leaving = None

    def _front(self, owner: Any, name: str) -> None:
        note = guarded("the note of how the program ends")(self._note)

        def leave(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            try:
                original(*args, **kwargs)
            except SystemExit as leaving:
                _kept = note(leaving)
                raise

        self._fronts.put(owner, name, leave)

    def _note(self, leaving: SystemExit) -> _ExitMarker | None:
        if threading.current_thread() is not threading.main_thread():
            return None  # it ends that thread alone
        code = leaving.code
        if code is None or code == 0:
            self.failure = None
        else:
            self.failure = ("SystemExit", f"exit code {int(code)}" if isinstance(code, int) else first_line(leaving))
        kept = _ExitMarker()
        self._leaving = weakref.ref(kept, self._dropped)
        return kept

    def _dropped(self, leaving: weakref.ref[_ExitMarker]) -> None:
        """The exception is gone. While any code of Python still runs, somebody caught it; at the very end none does."""
        if leaving is self._leaving and _called_from_python():
            self.forget()


def _called_from_python() -> bool:
    try:
        sys._getframe(2)  # behind this function and the callback: whoever dropped the last reference
    except ValueError:
        return False
    return True
