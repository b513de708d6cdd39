"""Builds the dicts and lists of a pickle. A dict becomes a row of the table that its keys indicate; a list of frames, a stack."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope_server.analysis.numba_compile import fused, int64, lean
from vramscope_server.analysis.snapshot_format.pickle_vm.fields import new_row, set_field
from vramscope_server.analysis.snapshot_format.pickle_vm.opcodes import CHANGED, DONE, FIELD
from vramscope_server.analysis.snapshot_format.pickle_vm.row_tables import frame_of
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import (  # fmt: skip
    ANNOTATIONS,
    BLOCKS,
    DICT,
    EMPTY_LIST,
    EVENTS,
    FLAT,
    FRAME,
    FRAMES,
    FRAMES_LIST,
    INTEGER,
    KIND_BITS,
    KNOWN_WORDS,
    LABELS,
    OTHER,
    PAIRS,
    POOLS,
    ROWS_LIST,
    RUNS,
    SEGMENTS,
    STACK_LIST,
    STACKS,
    TAG_BITS,
    USED_FRAME,
    WORD,
    WORD_NUMBER,
    kind_by_word,
)

_KNOWN: Final = len(KNOWN_WORDS)
_KIND_MASK: Final = (1 << KIND_BITS) - 1
_TAG_MASK: Final = (1 << TAG_BITS) - 1
_W_FILE, _W_LINE, _W_NAME, _W_NOTHING = (WORD_NUMBER[_word] for _word in ("filename", "line", "name", ""))


@fused
def kind_of_dict(t: Any, stack: Any, low: int, height: int, holder: int) -> Any:
    """Return the kind of a dict from its keys on the stack; 0 if its kind was known before."""
    if t.dicts[holder] & _KIND_MASK > OTHER:
        return np.int64(0)
    found_kind = np.int64(OTHER)
    for at in range(low, height, 2):
        key = stack[at]
        if key & _TAG_MASK == WORD and key >> TAG_BITS < _KNOWN:
            found_kind = max(found_kind, kind_by_word[key >> TAG_BITS])
    return found_kind


@fused
def set_items(t: Any, stack: Any, low: int, height: int, holder: int, found_kind: int) -> Any:
    """Run SETITEMS: store the pairs on the stack from ``low`` on in a dict. Return the result code. Requires enough room."""
    kind, row = t.dicts[holder] & _KIND_MASK, t.dicts[holder] >> KIND_BITS
    if kind == FRAME and t.dicts[holder] & USED_FRAME:
        return CHANGED
    if kind <= FRAME:
        earlier = row if kind == OTHER else np.int64(-1)
        if found_kind == OTHER and kind != FRAME:
            for at in range(low, height, 2):
                pair = t.count[PAIRS]
                t.pairs[pair, 0], t.pairs[pair, 1], t.pairs[pair, 2] = stack[at], stack[at + 1], earlier
                t.count[PAIRS] = pair + 1
                earlier = pair
            t.dicts[holder] = (earlier << KIND_BITS) | OTHER
            return DONE
        if found_kind == FRAME or kind == FRAME:
            file = function = int64(_W_NOTHING)
            line = int64(0)
            if kind == FRAME:
                file, line, function = (
                    int64(t.frames[row, 0]),
                    int64(t.frames[row, 1]),
                    int64(t.frames[row, 2]),
                )
            at = low
            while at < height or earlier >= 0:
                key, value = (stack[at], stack[at + 1]) if at < height else (t.pairs[earlier, 0], t.pairs[earlier, 1])
                if at >= height:
                    earlier = t.pairs[earlier, 2]
                at += 2
                if key == (_W_LINE << TAG_BITS) | WORD:
                    if value & _TAG_MASK == INTEGER and 0 <= value >> TAG_BITS < 1 << 31:
                        line = value >> TAG_BITS
                elif value & _TAG_MASK == WORD:
                    if key == (_W_FILE << TAG_BITS) | WORD:
                        file = value >> TAG_BITS
                    elif key == (_W_NAME << TAG_BITS) | WORD:
                        function = value >> TAG_BITS
            t.dicts[holder] = (frame_of(t, file, line, function) << KIND_BITS) | FRAME
            return DONE
        kind, row = found_kind, new_row(t, found_kind)
        t.dicts[holder] = (row << KIND_BITS) | kind
    else:
        earlier = np.int64(-1)
    at = low
    while at < height or earlier >= 0:
        key, value = (stack[at], stack[at + 1]) if earlier < 0 else (t.pairs[earlier, 0], t.pairs[earlier, 1])
        if earlier >= 0:
            earlier = t.pairs[earlier, 2]
        else:
            at += 2
        if not set_field(t, kind, row, key, value):
            return FIELD
    return DONE


@fused
def append_item(t: Any, item: int, row: int) -> Any:
    """Append one item to a list. Return the result code. Requires enough room."""
    holds, length = t.lists[row, 0] & 3, t.lists[row, 0] >> 2
    tag, number = item & _TAG_MASK, item >> TAG_BITS
    if holds == STACK_LIST:
        return CHANGED
    if tag == DICT and t.dicts[number] & _KIND_MASK > OTHER:
        entry = t.dicts[number] & ~USED_FRAME
        if entry & _KIND_MASK == FRAME:
            t.dicts[number] = entry | USED_FRAME
    elif tag == DICT:
        entry = (number << KIND_BITS) | OTHER
    else:
        entry = (number << KIND_BITS) | tag
    if entry & _KIND_MASK == FRAME and holds != ROWS_LIST:
        begin, end = t.lists[row, 1], t.count[FLAT]
        if holds == EMPTY_LIST:
            begin = end
        elif begin + length != end:  # other frames were added after it in the meantime, so it moves to the end
            for at in range(length):
                t.flat[end + at] = t.flat[begin + at]
            begin, end = end, end + length
        t.flat[end] = entry >> KIND_BITS
        t.count[FLAT] = end + 1
        t.lists[row, 0], t.lists[row, 1] = (length + 1) << 2 | FRAMES_LIST, begin
        return DONE
    if holds == FRAMES_LIST:
        return CHANGED
    last = t.lists[row, 2]
    if holds == ROWS_LIST and t.runs[last, 0] + (t.runs[last, 1] << KIND_BITS) == entry:
        t.runs[last, 1] += 1
    else:
        run = t.count[RUNS]
        t.runs[run, 0], t.runs[run, 1], t.runs[run, 2] = entry, 1, -1
        if holds == ROWS_LIST:
            t.runs[last, 2] = run
        else:
            t.lists[row, 1] = run
        t.lists[row, 2] = run
        t.count[RUNS] = run + 1
    t.lists[row, 0] = (length + 1) << 2 | ROWS_LIST
    return DONE


@fused
def full_table(t: Any, pairs: int) -> Any:
    """Return the first table that has no room for one more dict with this many pairs; 0 if all have room."""
    count = t.count
    if count[PAIRS] + pairs > len(t.pairs):
        return PAIRS
    if count[STACKS] + pairs > len(t.stacks):
        return STACKS
    if count[POOLS] + pairs > len(t.pools):
        return POOLS
    if count[EVENTS] >= len(t.action):
        return EVENTS
    if count[FRAMES] >= len(t.frames):
        return FRAMES
    if count[BLOCKS] >= len(t.blocks):
        return BLOCKS
    if count[SEGMENTS] >= len(t.segments):
        return SEGMENTS
    if count[LABELS] + pairs > len(t.labels):
        return LABELS
    if count[ANNOTATIONS] >= len(t.annotations):
        return ANNOTATIONS
    return 0


@lean
def pairs_of(t: Any, holder: int) -> Any:
    """Return the number of pairs in a dict whose kind is not known yet."""
    found = np.int64(0)
    if t.dicts[holder] & _KIND_MASK == OTHER:
        pair = t.dicts[holder] >> KIND_BITS
        while pair >= 0:
            found += 1
            pair = t.pairs[pair, 2]
    return found
