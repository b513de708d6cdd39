"""Marker file in the shared spool folder that tells the ranks of a host about an OOM. It needs no server and exists before the
error is raised.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

SUFFIX: Final = ".ran-out"
STALE_S: Final = 3600.0


class PeerSignal:
    """One a session. Nothing here raises for the disk: without the file, the server's request remains."""

    def __init__(self, folder: Path, run: str) -> None:
        self._path = folder / f"{run}{SUFFIX}"
        self._known_ns = self._modified_ns()

    def send(self) -> None:
        """Signal the other ranks. This one does not receive it."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
        except OSError:
            return
        self._known_ns = self._modified_ns()

    def received(self) -> bool:
        """Whether another rank has signalled since the last call; about 2 µs."""
        modified_ns = self._modified_ns()
        if modified_ns == self._known_ns:
            return False
        self._known_ns = modified_ns
        return modified_ns != 0

    def remove_stale(self) -> None:
        """Remove the files of runs that ended long ago."""
        try:
            for path in self._path.parent.glob(f"*{SUFFIX}"):
                if time.time() - path.stat().st_mtime > STALE_S:
                    path.unlink(missing_ok=True)
        except OSError:
            return  # no folder yet, or another rank removes them as well

    def _modified_ns(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0
