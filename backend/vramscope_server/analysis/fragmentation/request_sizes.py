"""What a run asks of the allocator: how many bytes at each size, by heap. The measure of what a free piece is good for.

A heap is what the allocator searches for one request: one stream's part of the small or the large pool, or of a private one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.trace.counting_sort import numbered

Whole = npt.NDArray[np.int64]


class RequestSizes(NamedTuple):
    """The sizes that are asked for, each once, of one heap after the other."""

    first: Whole
    """heaps + 1: where each heap's sizes begin"""
    size_bytes: Whole
    """rounded sizes, rising within a heap"""
    share: npt.NDArray[np.float64]
    """of the heap's bytes, asked for in requests of up to that size; 1.0 at each heap's last"""


def request_sizes_of(heap: Whole, size_bytes: Whole, heaps: int) -> RequestSizes:
    """``heap`` and rounded size of each request of a run; heaps count from 0. A heap may have none."""
    sizes, size = numbered(size_bytes)
    asked, count = np.unique(heap * max(len(sizes), 1) + size, return_counts=True)
    heap, size_bytes = np.divmod(asked, max(len(sizes), 1))
    size_bytes = sizes[size_bytes]
    first = np.searchsorted(heap, np.arange(heaps + 1)).astype(np.int64)
    reached = np.append(0.0, np.cumsum(size_bytes * count.astype(np.float64)))
    below, total = reached[first[heap]], reached[first[heap + 1]] - reached[first[heap]]
    share = np.where(np.arange(len(heap)) + 1 == first[heap + 1], 1.0, (reached[1:] - below) / np.maximum(total, 1.0))
    return RequestSizes(first, size_bytes, share)
