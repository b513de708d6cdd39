"""A set of places, of which the nearest below any other is found in a few steps, however many there are.

All addresses at which anything may ever begin are known beforehand; their positions in rising order are the *places*. The set is
a bit a place, above it a bit for each word that is not empty, and so on: four levels for 16 million places.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import inner, lean

LEVELS: Final = 5
"""of 64 each: up to 2^30 places"""
_ONE: Final = np.uint64(1)
_ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


@inner
def empty_set(count: int) -> Any:
    """(the words, where each level's begin) for so many places."""
    first = np.zeros(LEVELS + 1, np.int64)
    words = count
    for level in range(LEVELS):
        words = (words >> 6) + 1
        first[level + 1] = first[level] + words
    return np.zeros(first[LEVELS], np.uint64), first


@lean
def put(words: Any, first: Any, place: int) -> None:
    """Into the set."""
    for level in range(LEVELS):
        words[first[level] + (place >> 6)] |= _ONE << np.uint64(place & 63)
        place >>= 6


@lean
def drop(words: Any, first: Any, place: int) -> None:
    """Out of the set."""
    for level in range(LEVELS):
        at = first[level] + (place >> 6)
        words[at] &= ~(_ONE << np.uint64(place & 63))
        if words[at]:
            return
        place >>= 6


@lean
def at_or_below(words: Any, first: Any, place: int) -> Any:
    """The highest of the set that is not above a place; -1: there is none."""
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
    """Position of the highest bit of a word that is not 0."""
    found = 0
    for width in (32, 16, 8, 4, 2, 1):
        above = word >> np.uint64(width)
        if above:
            word = above
            found += width
    return found
