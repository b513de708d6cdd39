"""What a training asked of the allocator, in order: all that a replay needs, and nothing of what the allocator answered."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray

ALLOC: Final = 0
FREE: Final = 1
"""Requested and completed at once: no other stream uses the block."""
FREE_REQUESTED: Final = 2
"""The program frees the block, which still waits for other streams."""
FREE_COMPLETED: Final = 3
"""The other streams are done. A replay that had to wait earlier (a retry, empty_cache) has completed it then."""
EMPTY_CACHE: Final = 4
POOL_FREEABLE: Final = 5
"""Nobody uses the private pool any more. The next release of cached blocks may return its memory."""
EMPTY_POOL: Final = 6
"""Only the cached blocks of a freeable private pool are returned, as at the end of a torch.cuda.MemPool."""


@dataclass(frozen=True)
class Program:
    """Operations as parallel arrays, all of one length."""

    op: npt.NDArray[np.uint8]
    item: npt.NDArray[np.int32]
    """Allocation, counted from 0 in the order of the ALLOCs; -1 for operations on none."""
    size_bytes: IntArray
    """ALLOC: asked for; else 0"""
    stream: npt.NDArray[np.int32]
    """ALLOC: counted from 0 in the order of the streams' handles as unsigned numbers; else 0"""
    pool: npt.NDArray[np.int32]
    """ALLOC, POOL_FREEABLE, EMPTY_POOL: 0 is the default pool; private pools count from 1; else 0"""
    event: IntArray
    """Event of the trace; -1: memory that was there when the trace began."""

    def __len__(self) -> int:
        return len(self.op)

    def rows(self, rows: IntArray) -> Program:
        """These operations alone, in this order."""
        return Program(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})
