"""What a run asks of the allocator: how many bytes at each size, by heap. The measure of what a free piece is good for.

A heap is what the allocator searches for one request: one stream's part of the small or the large pool, or of a private one.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.compiled import entry
from vramscope_server.analysis.simulator.rounding import rounded

Whole = npt.NDArray[np.int64]


class Demand(NamedTuple):
    """The requests of all heaps, one heap after the other."""

    first: Whole
    """heaps + 1: where each heap's requests begin"""
    size_bytes: Whole
    """rounded sizes, rising within a heap"""
    share: npt.NDArray[np.float64]
    """of the heap's bytes, asked for in requests of up to that size; 1.0 at each heap's last"""


def demand_of(heap: Whole, size_bytes: Whole, heaps: int) -> Demand:
    """``heap`` and rounded size of each request of a run; heaps count from 0. A heap may have none."""
    order = np.lexsort((size_bytes, heap))
    heap, size_bytes = heap[order], size_bytes[order]
    first = np.searchsorted(heap, np.arange(heaps + 1)).astype(np.int64)
    share = np.zeros(len(size_bytes), np.float64)
    for start, end in itertools.pairwise(first):
        if end > start:
            reached = np.cumsum(size_bytes[start:end], dtype=np.float64)
            share[start:end] = reached / reached[-1]
    return Demand(first, size_bytes, share)


@entry
def rounded_sizes(requested_bytes: Whole, divisions: Whole) -> Whole:
    """Requests as the allocator rounds them; ``divisions`` as ``block_sizes.rounded`` takes them."""
    sizes = np.empty(len(requested_bytes), np.int64)
    for index in range(len(requested_bytes)):
        sizes[index] = rounded(requested_bytes[index], divisions)
    return sizes
