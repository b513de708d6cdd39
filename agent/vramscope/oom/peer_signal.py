"""The word that a rank which runs out of memory leaves for the others of its host: an empty file in the spool folder, which they
share. It needs no server, and it is there before the error is raised.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

SUFFIX: Final = ".ran-out"
STALE_S: Final = 3600.0


class Word:
    """One a session. Nothing here raises for the disk: without the word the server's request is left."""

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / f"{run}{SUFFIX}"
        self._known_ns = self._left_ns()

    def leave(self) -> None:
        """Tell the others. Not told oneself."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError:
            return
        self._known_ns = self._left_ns()

    def came(self) -> bool:
        """Whether another rank has left it since the last time it was asked; some 2 µs."""
        left_ns = self._left_ns()
        if left_ns == self._known_ns:
            return False
        self._known_ns = left_ns
        return left_ns != 0

    def tidy(self) -> None:
        """Take away those of runs that are long over."""
        try:
            for path in self._path.parent.glob(f"*{SUFFIX}"):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink(missing_ok=True)
        except OSError:
            return  # no folder yet, or another rank tidies as well

    def _left_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0
