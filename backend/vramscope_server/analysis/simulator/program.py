"""Requests of a training to the allocator, in order. They are the input of a replay and contain none of its results."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray

ALLOC: Final = 0
FREE: Final = 1
"""Free a block that no other stream uses."""
FREE_REQUESTED: Final = 2
"""Free a block that other streams still use. It stays pending until they are done."""
FREE_COMPLETED: Final = 3
"""The other streams are done, so the block is free. No effect if the replay waited for them earlier (a retry, empty_cache)."""
EMPTY_CACHE: Final = 4
POOL_FREEABLE: Final = 5
"""A private pool is no longer used. The next release of cached blocks may return its memory."""
EMPTY_POOL: Final = 6
"""Return the cached blocks of one freeable private pool, as at the end of a torch.cuda.MemPool."""


@dataclass(frozen=True)
class Program:
    """Operations in order, as arrays of equal length."""

    op: npt.NDArray[np.uint8]
    item: npt.NDArray[np.int32]
    """Number of the allocation, from 0 in the order of the ALLOCs; -1 for operations without one."""
    size_bytes: IntArray
    """Requested bytes of an ALLOC; 0 for other operations."""
    stream: npt.NDArray[np.int32]
    """Stream of an ALLOC, numbered from 0 in the order of the handles as unsigned numbers; 0 for other operations."""
    pool: npt.NDArray[np.int32]
    """Pool of an ALLOC, POOL_FREEABLE or EMPTY_POOL: 0 is the default pool, private pools count from 1. Otherwise 0."""
    event: IntArray
    """Event of the trace; -1 for memory that was allocated before the trace began."""

    def __len__(self) -> int:
        return len(self.op)

    def rows(self, rows: IntArray) -> Program:
        """Return a program of the operations at these positions, in this order."""
        return Program(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})
