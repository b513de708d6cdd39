"""Memory that is set aside for the record and the diagnosis of an error of the host's memory."""

from __future__ import annotations

import contextlib
import mmap
from typing import Final

RESERVE_BYTES: Final = 16 << 20


class MemoryReserve:
    """Address space that nobody writes to: it takes no memory, but counts where a limit is set (``ulimit -v``, overcommit).

    There, a program that gets a MemoryError has nothing left to import the diagnosis with.
    """

    def __init__(self) -> None:
        self._space: mmap.mmap | None = None
        with contextlib.suppress(OSError):  # the limit is nearly reached
            self._space = mmap.mmap(-1, RESERVE_BYTES)

    def release(self) -> None:
        """Give it back to the process. A second call does nothing."""
        space, self._space = self._space, None
        if space is not None:
            space.close()
