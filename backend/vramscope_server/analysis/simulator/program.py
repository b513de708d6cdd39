"""What a training asked of the allocator, in order: all that a replay needs, and nothing of what the allocator answered."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

ALLOC: Final = 0
FREE: Final = 1
"""requested and completed at once: no other stream uses the block"""
FREE_REQUESTED: Final = 2
"""the client lets go; the block waits for other streams"""
FREE_COMPLETED: Final = 3
"""they are done. A replay that had to wait for all streams before (a retry, empty_cache) has completed it then."""
EMPTY_CACHE: Final = 4
POOL_FREEABLE: Final = 5
"""nobody uses the private pool any more: its memory may be returned by the next release of cached blocks"""
EMPTY_POOL: Final = 6
"""the cached blocks of a freeable private pool alone are given back: what the end of a torch.cuda.MemPool does"""


@dataclass(frozen=True)
class Program:
    """Operations as parallel arrays, all of one length."""

    op: npt.NDArray[np.uint8]
    item: npt.NDArray[np.int32]
    """which allocation, counted from 0 in the order of the ALLOCs; -1 for operations on none"""
    size_bytes: npt.NDArray[np.int64]
    """ALLOC: asked for; else 0"""
    stream: npt.NDArray[np.int32]
    """ALLOC: counted from 0 in the order of the streams' handles as unsigned numbers; else 0"""
    pool: npt.NDArray[np.int32]
    """ALLOC, POOL_FREEABLE, EMPTY_POOL: 0 is the default pool; private pools count from 1; else 0"""
    event: npt.NDArray[np.int64]
    """the event of the trace that it comes from; -1: what was there already when the trace begins"""

    def __len__(self) -> int:
        return len(self.op)

    def rows(self, rows: npt.NDArray[np.int64]) -> Program:
        """These operations alone, in this order."""
        return Program(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})
