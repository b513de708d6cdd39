"""Finds the allocation at an address at a given event."""

from __future__ import annotations

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.counting_sort import distinct
from vramscope_server.analysis.trace.trace import Trace


def allocation_at(trace: Trace, address: IntArray, event: IntArray) -> IntArray:
    """Position of the allocation whose block starts at each address after ``event`` events; -1 if there is none.

    O((lives + addresses) log lives).
    """
    lives = trace.lives
    if not len(lives):
        return np.full(len(address), -1, np.int64)
    places = distinct(lives.address)
    width = len(trace.events) + 2
    keys = np.searchsorted(places, lives.address) * width + lives.alloc_event + 1
    order = np.argsort(keys, kind="stable")
    place = np.minimum(np.searchsorted(places, address), len(places) - 1)
    # It was allocated by one of these events, and freed by none of them.
    at = np.searchsorted(keys[order], place * width + event, side="right") - 1
    life = order[np.maximum(at, 0)]
    there = (at >= 0) & (lives.address[life] == address) & (lives.completed_event[life] >= event)
    return np.where(there, life, -1)
