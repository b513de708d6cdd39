"""A set of places that finds the nearest place below another one in a few steps, whatever its size.

All possible start addresses are known beforehand. Their positions in sorted order are the *places*. The set has one bit per
place, above it one bit per non-empty word, and so on: four levels for 16 million places.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import inner, lean

LEVELS: Final = 5
"""Levels of 64 bits each: up to 2^30 places."""
_ONE: Final = np.uint64(1)
_ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@inner
def empty_set(count: int) -> Any:
    """Words of an empty set for ``count`` places, and the first word of each level."""
    first = np.zeros(LEVELS + 1, np.int64)
    words = count
    for level in range(LEVELS):
        words = (words >> 6) + 1
        first[level + 1] = first[level] + words
    return np.zeros(first[LEVELS], np.uint64), first


@lean
def put(words: Any, first: Any, place: int) -> None:
    """Add a place."""
    for level in range(LEVELS):
        words[first[level] + (place >> 6)] |= _ONE << np.uint64(place & 63)
        place >>= 6


@lean
def drop(words: Any, first: Any, place: int) -> None:
    """Remove a place."""
    for level in range(LEVELS):
        at = first[level] + (place >> 6)
        words[at] &= ~(_ONE << np.uint64(place & 63))
        if words[at]:
            return
        place >>= 6


@lean
def at_or_below(words: Any, first: Any, place: int) -> Any:
    """Highest place of the set that is not above ``place``; -1 if there is none."""
    for level in range(LEVELS):
        if place < 0:
            break
        word = words[first[level] + (place >> 6)] & (_ALL >> np.uint64(63 - (place & 63)))
        if word:
            place = ((place >> 6) << 6) | _highest(word)
            for lower in range(level - 1, -1, -1):
                place = (place << 6) | _highest(words[first[lower] + place])
            return place
        place = (place >> 6) - 1
    return -1


@lean
def _highest(word: Any) -> int:
    """Position of the highest bit of a nonzero word."""
    found = 0
    for width in (32, 16, 8, 4, 2, 1):
        above = word >> np.uint64(width)
        if above:
            word = above
            found += width
    return found
