"""Stores the fields of events, blocks, segments and annotations in the columns of the tables."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.numba_compile import fused, int64, lean
from vramscope_server.analysis.snapshot_format.pickle_vm.row_tables import pool_of, stack_of
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    ANNOTATION,
    ANNOTATIONS,
    BEYOND,
    BEYOND_KIND,
    BLOCK,
    BLOCKS,
    CONSTANT,
    EMPTY_LIST,
    EVENT,
    EVENTS,
    FALSE,
    FAULT_ITEM,
    FAULT_KIND,
    FAULT_WORD,
    FIRST_STATE,
    INTEGER,
    KIND_BITS,
    KNOWN_WORDS,
    LABELS,
    LIST,
    MISSING,
    NEW,
    NONE,
    OTHER,
    OTHER_TUPLE,
    POOL,
    ROWS_LIST,
    SEGMENT,
    SEGMENTS,
    STACK_LIST,
    TAG_BITS,
    TOO_LARGE,
    UNKNOWN,
    WHOLE,
    WIDE,
    WORD,
    WORD_NUMBER,
    known_fields,
)
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import UNSIGNED as UNSIGNED_WIDE

_FOREIGN_ACTION: Final = 255
_ACTIONS: Final = len(ACTIONS)
_KNOWN: Final = len(KNOWN_WORDS)
_KIND_MASK: Final = (1 << KIND_BITS) - 1
_TAG_MASK: Final = (1 << TAG_BITS) - 1
NO_NUMBER, SIGNED, UNSIGNED, OVER = range(4)
"""Kinds of numbers: not an integer; a signed one of 64 bits; one from 2**63 to below 2**64; one beyond both ranges."""
_LATEST: Final = (1 << 62) // 1000
_MAX_UNKNOWN: Final = 64
(
    _W_ACTION, _W_ADDR, _W_DEVICE_FREE, _W_SIZE, _W_STREAM, _W_TIME, _W_FRAMES, _W_POOL, _W_ADDRESS, _W_REQUESTED, _W_STATE,
    _W_DEVICE, _W_TOTAL, _W_TYPE, _W_SEGMENT_POOL, _W_EXPANDABLE, _W_BLOCKS, _W_SMALL, _W_LARGE, _W_NOTHING, _W_METADATA,
    _W_COMPILE, _W_NOT_COMPILED, _W_FORWARD, _W_HISTORY, _W_REAL_SIZE, _W_STAGE, _W_START, _W_END, _W_NAME,
) = (
    WORD_NUMBER[_word] for _word in (
        "action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id", "address", "requested_size",
        "state", "device", "total_size", "segment_type", "segment_pool_id", "is_expandable", "blocks", "small", "large", "",
        "user_metadata", "compile_context", "N/A", "forward_frames", "history", "real_size", "stage", "START", "END", "name",
    )
)  # fmt: skip


@fused
def number_of(t: Any, item: int) -> Any:
    """Return the kind of a number, and its lowest 64 bits."""
    if item & _TAG_MASK == INTEGER:
        return SIGNED, item >> TAG_BITS
    if item & _TAG_MASK == WIDE:
        kind, bits = t.wide[item >> TAG_BITS, 0], t.wide[item >> TAG_BITS, 1]
        if kind == WHOLE:
            return SIGNED, bits
        if kind == UNSIGNED_WIDE:
            return UNSIGNED, bits
        if kind == TOO_LARGE:
            return OVER, bits
    return NO_NUMBER, np.int64(0)


@fused
def _as_address(t: Any, item: int) -> Any:
    """Return whether an item is a number, and its 64 bits; BEYOND if it does not fit.

    Addresses are unsigned in PyTorch. Those from 2**63 on are negative here.
    """
    kind, number = number_of(t, item)
    return kind != NO_NUMBER, number if kind < OVER and number > BEYOND else np.int64(BEYOND)


@fused
def _as_size(t: Any, item: int) -> Any:
    """Return whether an item is a number, and the number; BEYOND if it does not fit into a signed 64-bit integer."""
    kind, number = number_of(t, item)
    return kind != NO_NUMBER, number if kind <= SIGNED else np.int64(BEYOND)


@lean
def _as_stream(t: Any, kind: int, word: int, item: int) -> Any:
    """Return whether an item is a number, and its lowest 64 bits, which are enough to distinguish streams."""
    is_number, number = number_of(t, item)
    if is_number == OVER:
        _count_unknown(t, BEYOND_KIND + kind, word)
    return is_number != NO_NUMBER, number


@lean
def _as_pool(t: Any, item: int) -> Any:
    """Return the position of a pool; -2 if the item is not a pool, -3 if its numbers are out of range."""
    if item == (OTHER_TUPLE << TAG_BITS) | CONSTANT:
        return np.int64(-3)
    if item & _TAG_MASK == POOL:
        return item >> TAG_BITS
    if item & _TAG_MASK == LIST:  # [a, b], as in JSON
        row = item >> TAG_BITS
        if t.lists[row, 0] == (2 << 2) | ROWS_LIST:
            run, first, found = t.lists[row, 1], int64(0), 0
            while run >= 0:
                if t.runs[run, 0] & _KIND_MASK != INTEGER:
                    return np.int64(-2)
                for nth in range(t.runs[run, 1]):
                    number = (t.runs[run, 0] >> KIND_BITS) + nth
                    found += 1
                    if found == 2:
                        return pool_of(t.count, t.pools, t.pool_slots, first, number)
                    first = number
                run = t.runs[run, 2]
    return np.int64(-2)


@fused
def _as_stack(t: Any, item: int) -> Any:
    """Return the position of a stack; -1 if there is none, -2 if the item is not a list, -3 if an element is not a frame."""
    if item == (NONE << TAG_BITS) | CONSTANT:
        return np.int64(-1)
    if item & _TAG_MASK != LIST:
        return np.int64(-2)
    row = item >> TAG_BITS
    holds = t.lists[row, 0] & 3
    if holds == EMPTY_LIST:
        return np.int64(-1)
    if holds == STACK_LIST:
        return t.lists[row, 1]
    if holds == ROWS_LIST:
        return np.int64(-3)
    stack = stack_of(t, t.lists[row, 1], t.lists[row, 0] >> 2)
    t.lists[row, 0] = (t.lists[row, 0] >> 2 << 2) | STACK_LIST
    t.lists[row, 1] = stack
    return stack


@fused
def _event_field(t: Any, row: int, word: int, item: int) -> Any:
    if word == _W_ACTION:
        if item & _TAG_MASK != WORD:
            return False
        index = item >> TAG_BITS
        t.action[row] = index if index < _ACTIONS else _FOREIGN_ACTION
        if index >= _ACTIONS:
            _count_unknown(t, NEW, index)
        return True
    if word == _W_FRAMES:
        stack = _as_stack(t, item)
        t.stack_of[row] = stack
        return stack >= -1
    if word == _W_POOL:
        if item == (NONE << TAG_BITS) | CONSTANT:
            return True
        pool = _as_pool(t, item)
        t.pool[row] = pool
        return pool != -2
    if word in (_W_ADDR, _W_SIZE, _W_STREAM, _W_TIME, _W_DEVICE_FREE):
        if word == _W_ADDR:
            is_number, t.address[row] = _as_address(t, item)
            return is_number
        if word == _W_STREAM:
            is_number, t.stream[row] = _as_stream(t, EVENT, word, item)
            return is_number
        is_number, number = _as_size(t, item)
        if word == _W_TIME:
            is_over = number == BEYOND or number > _LATEST
            t.time_ns[row] = BEYOND if is_over else number * 1000 if number >= 0 else -1
            return is_number
        if word == _W_SIZE:
            t.size_bytes[row] = number
        elif t.address[row] == MISSING:
            t.address[row] = number
        return is_number and (number >= 0 or number == BEYOND)
    if word in (_W_METADATA, _W_COMPILE):
        index = item >> TAG_BITS
        if item & _TAG_MASK == WORD and index != _W_NOTHING and index != _W_NOT_COMPILED:
            _label(t, row, word, index)
        return True
    if word == _W_FORWARD:
        if item & _TAG_MASK == LIST:
            _label(t, row, word, item >> TAG_BITS)
        return True
    if not (word < _KNOWN and known_fields[EVENT, word]):
        _count_unknown(t, EVENT, word)
    return True


@lean
def _label(t: Any, row: int, word: int, number: int) -> None:
    label = t.count[LABELS]
    t.labels[label, 0], t.labels[label, 1], t.labels[label, 2] = row, word, number
    t.count[LABELS] = label + 1


@lean
def _block_field(t: Any, row: int, word: int, item: int) -> Any:
    if word == _W_FRAMES:
        stack = _as_stack(t, item)
        t.blocks[row, 4] = stack
        return stack >= -1
    if word == _W_STATE:
        state = (item >> TAG_BITS) - FIRST_STATE
        t.blocks[row, 3] = min(state, 2) if 0 <= state <= 3 else -1 - (item >> TAG_BITS)
        return item & _TAG_MASK == WORD
    if word in (_W_ADDRESS, _W_SIZE, _W_REQUESTED):
        is_number, number = _as_size(t, item)
        t.blocks[row, 0 if word == _W_ADDRESS else 1 if word == _W_SIZE else 2] = number
        return is_number
    if word == _W_HISTORY:
        return _block_history(t, row, item)
    if not (word < _KNOWN and known_fields[BLOCK, word]):
        _count_unknown(t, BLOCK, word)
    return True


@lean
def _block_history(t: Any, row: int, item: int) -> Any:
    """Read the size and stack of a block's newest allocation from its history, the format up to torch 2.0."""
    if item & _TAG_MASK != LIST:
        return False
    held = item >> TAG_BITS
    if t.lists[held, 0] & 3 == EMPTY_LIST:
        return True
    first = t.runs[t.lists[held, 1], 0] if t.lists[held, 0] & 3 == ROWS_LIST else np.int64(0)
    if first & _KIND_MASK != OTHER or t.dicts[first >> KIND_BITS] & _KIND_MASK != OTHER:
        return False
    pair = t.dicts[first >> KIND_BITS] >> KIND_BITS
    while pair >= 0:
        key, value = t.pairs[pair, 0], t.pairs[pair, 1]
        if key == (_W_REAL_SIZE << TAG_BITS) | WORD:
            is_number, number = _as_size(t, value)
            t.blocks[row, 2] = number
            if not is_number:
                return False
        elif key == (_W_FRAMES << TAG_BITS) | WORD:
            t.blocks[row, 4] = _as_stack(t, value)
            if t.blocks[row, 4] < -1:
                return False
        pair = t.pairs[pair, 2]
    return True


@lean
def _annotation_field(t: Any, row: int, word: int, item: int) -> None:
    """Store a field of an annotation. An invalid value is no error, because annotations are optional: it stays unknown."""
    kind, number = number_of(t, item)
    is_whole = kind == SIGNED
    is_word, index = item & _TAG_MASK == WORD, item >> TAG_BITS
    if word == _W_STAGE and is_word and index in (_W_START, _W_END):
        t.annotations[row, 0] = index == _W_END
    elif word == _W_NAME and is_word:
        t.annotations[row, 3] = index
    elif word == _W_DEVICE and is_whole:
        t.annotations[row, 1] = number
    elif word == _W_TIME and is_whole and 0 <= number <= _LATEST:
        t.annotations[row, 2] = number * 1000


@lean
def _segment_field(t: Any, row: int, word: int, item: int) -> Any:
    if word == _W_TYPE:
        index = item >> TAG_BITS
        t.segments[row, 4] = index == _W_LARGE if index in (_W_LARGE, _W_SMALL) else -2 - index
        return item & _TAG_MASK == WORD
    if word == _W_SEGMENT_POOL:
        t.segments[row, 5] = _as_pool(t, item)
        return t.segments[row, 5] != -2
    if word == _W_EXPANDABLE:
        t.segments[row, 6] = (
            item != (FALSE << TAG_BITS) | CONSTANT and item != (NONE << TAG_BITS) | CONSTANT and item != 0
        )
        return True
    if word == _W_BLOCKS:
        t.segments[row, 7] = item >> TAG_BITS
        return item & _TAG_MASK == LIST
    if word == _W_ADDRESS:
        is_number, t.segments[row, 1] = _as_address(t, item)
        return is_number
    if word == _W_STREAM:
        is_number, t.segments[row, 3] = _as_stream(t, SEGMENT, word, item)
        return is_number
    if word in (_W_DEVICE, _W_TOTAL):
        is_number, number = _as_size(t, item)
        t.segments[row, 0 if word == _W_DEVICE else 2] = number
        return is_number and (word != _W_DEVICE or 0 <= number < 1024)
    if not (word < _KNOWN and known_fields[SEGMENT, word]):
        _count_unknown(t, SEGMENT, word)
    return True


@lean
def _count_unknown(t: Any, kind: int, word: int) -> None:
    for row in range(t.count[UNKNOWN]):
        if t.unknown[row, 0] == kind and t.unknown[row, 1] == word:
            t.unknown[row, 2] += 1
            return
    row = t.count[UNKNOWN]
    if row < _MAX_UNKNOWN:
        t.unknown[row, 0], t.unknown[row, 1], t.unknown[row, 2] = kind, word, 1
        t.count[UNKNOWN] = row + 1


@fused
def set_field(t: Any, kind: int, row: int, key: int, value: int) -> Any:
    """Store one field of a row. Return False, and note the field, if its value is invalid."""
    fine = True
    if key & _TAG_MASK == WORD:
        word = key >> TAG_BITS
        if kind == EVENT:
            fine = _event_field(t, row, word, value)
        elif kind == BLOCK:
            fine = _block_field(t, row, word, value)
        elif kind == SEGMENT:
            fine = _segment_field(t, row, word, value)
        elif kind == ANNOTATION:
            _annotation_field(t, row, word, value)
        if not fine:
            t.count[FAULT_WORD], t.count[FAULT_ITEM], t.count[FAULT_KIND] = word, value, kind
    return fine


@fused
def new_row(t: Any, kind: int) -> Any:
    """Add an empty row of this kind, and return its number. Requires enough room."""
    row = np.int64(0)
    if kind == EVENT:
        row = t.count[EVENTS]
        t.action[row] = _FOREIGN_ACTION
        t.address[row] = t.size_bytes[row] = MISSING
        t.stream[row], t.time_ns[row], t.pool[row], t.stack_of[row] = 0, -1, -1, -1
        t.count[EVENTS] = row + 1
    elif kind == BLOCK:
        row = t.count[BLOCKS]
        t.blocks[row, 0] = t.blocks[row, 1] = MISSING
        t.blocks[row, 2], t.blocks[row, 3], t.blocks[row, 4] = -1, 0, -1
        t.count[BLOCKS] = row + 1
    elif kind == SEGMENT:
        row = t.count[SEGMENTS]
        t.segments[row, 1] = t.segments[row, 2] = t.segments[row, 4] = MISSING
        t.segments[row, 0] = t.segments[row, 3] = t.segments[row, 5] = t.segments[row, 6] = 0
        t.segments[row, 7] = -1
        t.count[SEGMENTS] = row + 1
    elif kind == ANNOTATION:
        row = t.count[ANNOTATIONS]
        t.annotations[row, 0] = t.annotations[row, 1] = t.annotations[row, 2] = t.annotations[row, 3] = -1
        t.count[ANNOTATIONS] = row + 1
    return row
