"""Stores words, pools, frames and stacks in the tables without duplicates, which are found by hash."""

from __future__ import annotations

from typing import Any

import numpy as np

from vramscope_server.analysis.numba_compile import fused, lean, lean_entry
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    FLAT,
    FRAMES,
    POOLS,
    SEED,
    STACKS,
    TEXT,
    WORDS,
)


@lean
def _hashed_bytes(seed: int, data: Any, begin: int, end: int) -> Any:
    mixed = np.int64(seed)
    for at in range(begin, end):
        mixed = (mixed ^ np.int64(data[at])) * np.int64(1099511628211)
    return mixed ^ (mixed >> 29)


@fused
def _hashed(mixed: Any, number: Any) -> Any:
    mixed = (mixed ^ np.int64(number)) * np.int64(-7046029254386353131)
    return mixed ^ (mixed >> 32)


@lean
def word_of(count: Any, word_ends: Any, text: Any, word_slots: Any, data: Any, begin: int, end: int) -> Any:
    """Return the number of a word, and add the word if it is new. Requires enough room."""
    mask = len(word_slots) - 1
    slot = _hashed_bytes(count[SEED], data, begin, end) & mask
    while word_slots[slot] >= 0:
        number = word_slots[slot]
        low = word_ends[number - 1] if number else 0
        if word_ends[number] - low == end - begin:
            same = True
            for at in range(end - begin):
                if text[low + at] != data[begin + at]:
                    same = False
                    break
            if same:
                return np.int64(number)
        slot = (slot + 1) & mask
    number, low = count[WORDS], count[TEXT]
    for at in range(end - begin):
        text[low + at] = data[begin + at]
    word_ends[number] = count[TEXT] = low + end - begin
    word_slots[slot] = number
    count[WORDS] = number + 1
    return np.int64(number)


@lean
def pool_of(count: Any, pools: Any, pool_slots: Any, first: int, second: int) -> Any:
    mask = len(pool_slots) - 1
    slot = _hashed(_hashed(count[SEED], first), second) & mask
    while pool_slots[slot] >= 0:
        number = pool_slots[slot]
        if pools[number, 0] == first and pools[number, 1] == second:
            return np.int64(number)
        slot = (slot + 1) & mask
    number = count[POOLS]
    pools[number, 0], pools[number, 1] = first, second
    pool_slots[slot] = number
    count[POOLS] = number + 1
    return np.int64(number)


@lean
def frame_of(t: Any, file: int, line: int, function: int) -> Any:
    mask = len(t.frame_slots) - 1
    slot = _hashed(_hashed(_hashed(t.count[SEED], file), line), function) & mask
    while t.frame_slots[slot] >= 0:
        number = t.frame_slots[slot]
        if t.frames[number, 0] == file and t.frames[number, 1] == line and t.frames[number, 2] == function:
            return np.int64(number)
        slot = (slot + 1) & mask
    number = t.count[FRAMES]
    t.frames[number, 0], t.frames[number, 1], t.frames[number, 2] = file, line, function
    t.frame_slots[slot] = number
    t.count[FRAMES] = number + 1
    return np.int64(number)


@lean
def _hashed_stack(seed: int, flat: Any, begin: int, length: int) -> Any:
    mixed = _hashed(seed, length)
    for at in range(begin, begin + length):
        mixed = _hashed(mixed, flat[at])
    return mixed


@lean
def stack_of(t: Any, begin: int, length: int) -> Any:
    """Return the number of the stack with these frames. If it is known, frames at the end of ``flat`` are removed again."""
    mask = len(t.stack_slots) - 1
    slot = _hashed_stack(t.count[SEED], t.flat, begin, length) & mask
    while t.stack_slots[slot] >= 0:
        number = t.stack_slots[slot]
        low = t.stacks[number, 0]
        if t.stacks[number, 1] == length:
            same = True
            for at in range(length):
                if t.flat[low + at] != t.flat[begin + at]:
                    same = False
                    break
            if same:
                if begin + length == t.count[FLAT]:
                    t.count[FLAT] = begin
                return np.int64(number)
        slot = (slot + 1) & mask
    number = t.count[STACKS]
    t.stacks[number, 0], t.stacks[number, 1] = begin, length
    t.stack_slots[slot] = number
    t.count[STACKS] = number + 1
    return np.int64(number)


@lean_entry
def rebuild_slots(t: Any, what: int) -> None:
    """Insert all rows into new hash slots."""
    if what == WORDS:
        mask = len(t.word_slots) - 1
        for number in range(t.count[WORDS]):
            low = t.word_ends[number - 1] if number else 0
            slot = _hashed_bytes(t.count[SEED], t.text, low, t.word_ends[number]) & mask
            while t.word_slots[slot] >= 0:
                slot = (slot + 1) & mask
            t.word_slots[slot] = number
    elif what == POOLS:
        mask = len(t.pool_slots) - 1
        for number in range(t.count[POOLS]):
            slot = _hashed(_hashed(t.count[SEED], t.pools[number, 0]), t.pools[number, 1]) & mask
            while t.pool_slots[slot] >= 0:
                slot = (slot + 1) & mask
            t.pool_slots[slot] = number
    elif what == FRAMES:
        mask = len(t.frame_slots) - 1
        for number in range(t.count[FRAMES]):
            mixed = _hashed(
                _hashed(_hashed(t.count[SEED], t.frames[number, 0]), t.frames[number, 1]), t.frames[number, 2]
            )
            slot = mixed & mask
            while t.frame_slots[slot] >= 0:
                slot = (slot + 1) & mask
            t.frame_slots[slot] = number
    elif what == STACKS:
        mask = len(t.stack_slots) - 1
        for number in range(t.count[STACKS]):
            slot = _hashed_stack(t.count[SEED], t.flat, t.stacks[number, 0], t.stacks[number, 1]) & mask
            while t.stack_slots[slot] >= 0:
                slot = (slot + 1) & mask
            t.stack_slots[slot] = number


@lean_entry
def add_known_words(t: Any, words: Any, ends: Any) -> None:
    """Add the known words and the default pool."""
    low = 0
    for end in ends:
        word_of(t.count, t.word_ends, t.text, t.word_slots, words, low, end)
        low = end
    pool_of(t.count, t.pools, t.pool_slots, 0, 0)
