"""Requested bytes of a run by size and heap. They determine which free blocks are usable.

A heap is the set of blocks that the allocator searches for one request: one stream's part of the small, large or a private pool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.trace.counting_sort import numbered


class RequestSizes(NamedTuple):
    """Distinct request sizes of all heaps, one heap after the other."""

    first: IntArray
    """First position of each heap's sizes; heaps + 1 values."""
    size_bytes: IntArray
    """Rounded sizes, sorted within a heap."""
    share: FloatArray
    """Share of the heap's bytes in requests of up to this size; 1.0 at each heap's last size."""


def request_sizes_of(heap: IntArray, size_bytes: IntArray, heaps: int) -> RequestSizes:
    """Request sizes from the heap and rounded size of each request. Heaps are numbered from 0 and may be empty."""
    sizes, size = numbered(size_bytes)
    distinct, count = np.unique(heap * max(len(sizes), 1) + size, return_counts=True)
    heap, size_bytes = np.divmod(distinct, max(len(sizes), 1))
    size_bytes = sizes[size_bytes]
    first = np.searchsorted(heap, np.arange(heaps + 1)).astype(np.int64)
    reached = np.append(0.0, np.cumsum(size_bytes * count.astype(np.float64)))
    below, total = reached[first[heap]], reached[first[heap + 1]] - reached[first[heap]]
    share = np.where(np.arange(len(heap)) + 1 == first[heap + 1], 1.0, (reached[1:] - below) / np.maximum(total, 1.0))
    return RequestSizes(first, size_bytes, share)
