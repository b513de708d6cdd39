"""Finds the allocation at an address at a given event."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.counting_sort import distinct
from vramscope_server.analysis.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class AddressIndex:
    """Allocations of a trace, sorted by address and then by event."""

    places: IntArray
    """Distinct addresses, ascending."""
    keys: IntArray
    """Address and event as one number, ascending."""
    order: IntArray
    """Position of the allocation of each key."""


def address_index(trace: Trace) -> AddressIndex:
    """Sort the allocations of a trace. O(lives log lives)."""
    lives = trace.lives
    places = distinct(lives.address)
    keys = np.searchsorted(places, lives.address) * _width(trace) + lives.alloc_event + 1
    order = np.argsort(keys, kind="stable")
    return AddressIndex(places, keys[order], order)


def allocation_at(trace: Trace, address: IntArray, event: IntArray, index: AddressIndex | None = None) -> IntArray:
    """Position of the allocation whose block starts at each address after ``event`` events; -1 if there is none.

    O(addresses log lives), besides the index, which is made if it is not given.
    """
    lives = trace.lives
    if not len(lives):
        return np.full(len(address), -1, np.int64)
    index = index or address_index(trace)
    place = np.minimum(np.searchsorted(index.places, address), len(index.places) - 1)
    # It was allocated by one of these events, and freed by none of them.
    at = np.searchsorted(index.keys, place * _width(trace) + event, side="right") - 1
    life = index.order[np.maximum(at, 0)]
    there = (at >= 0) & (lives.address[life] == address) & (lives.completed_event[life] >= event)
    return np.where(there, life, -1)


def _width(trace: Trace) -> int:
    """Number of events that a key can have at one address."""
    return len(trace.events) + 2
