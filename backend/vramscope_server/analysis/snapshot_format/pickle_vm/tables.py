"""Tables of numbers that hold a snapshot while it is read, instead of the objects that a pickle would create.

An item is one number. Its lowest bits are the type. The other bits are an integer, or a row of a table.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS, STATES

INTEGER, WORD, LIST, DICT, POOL, WIDE, CONSTANT, NOTHING = range(8)
"""Types of items. POOL: a tuple of two integers; WIDE: a float, or an integer of more than 61 bits."""
TAG_BITS: Final = 3
NONE, TRUE, FALSE, OTHER_TUPLE = range(4)
"""Values of an item of type CONSTANT. OTHER_TUPLE: any tuple but a pool."""
NEW, OTHER, FRAME, ANNOTATION, SEGMENT, BLOCK, EVENT = range(8, 15)
"""Kinds of dicts, determined by their keys. If several kinds match, the last one counts. NEW: the dict is empty so far; OTHER:
its pairs are kept as they are."""
KIND_BITS: Final = 4
USED_FRAME: Final = 1 << 61
"""Mark of a frame in ``dicts`` that is in a list already."""
EMPTY_LIST, FRAMES_LIST, STACK_LIST, ROWS_LIST = range(4)
"""Contents of a list: nothing; frames; frames that are complete and stored as a stack; any items, in runs of consecutive rows."""
TOO_LARGE, WHOLE, FLOAT, UNSIGNED = range(4)
"""Types of wide items. UNSIGNED: an integer from 2**63 to below 2**64; TOO_LARGE: any other, of which the lowest 64 bits are
kept."""
MISSING: Final = -(1 << 63)
"""Value of a field that is missing."""
BEYOND: Final = MISSING + 1
"""Value of a field that is present and above the possible range."""
BEYOND_KIND: Final = 16
"""Added to the kind in ``unknown`` for values that are out of range."""

_STATES: Final = (*STATES, "active_awaiting_free")
_VALUES: Final = ("small", "large", "", "N/A", "START", "END", "real_size")
FIELDS: Final = {
    FRAME: ("filename", "line", "name"),
    ANNOTATION: ("stage", "device", "time_us", "name"),
    SEGMENT: (
        "device", "address", "total_size", "allocated_size", "active_size", "requested_size", "stream", "segment_type",
        "segment_pool_id", "is_expandable", "frames", "blocks",
    ),
    BLOCK: ("address", "size", "requested_size", "state", "frames", "history"),
    EVENT: (
        "action", "addr", "device_free", "size", "stream", "time_us", "compile_context", "user_metadata", "frames",
        "forward_frames", "pool_id",
    ),
}  # fmt: skip
"""Known fields. Unknown fields of events, blocks and segments are counted."""
_TELLING: Final = {
    FRAME: ("filename", "line"), ANNOTATION: ("stage",), SEGMENT: ("total_size", "segment_type", "blocks"),
    BLOCK: ("state",), EVENT: ("action",),
}  # fmt: skip
"""Keys that determine the kind of a dict."""
KNOWN_WORDS: Final = tuple(
    dict.fromkeys((*ACTIONS, *_STATES, *_VALUES, *itertools.chain.from_iterable(FIELDS.values())))
)
"""Words with fixed numbers. Actions come first, so that their numbers are their codes."""
WORD_NUMBER: Final = {word: at for at, word in enumerate(KNOWN_WORDS)}
FIRST_STATE: Final = WORD_NUMBER[STATES[0]]

kind_by_word: Final = np.full(len(KNOWN_WORDS), OTHER, np.int64)
known_fields: Final = np.zeros((EVENT + 1, len(KNOWN_WORDS)), np.bool_)
for _kind, _words in _TELLING.items():
    kind_by_word[[WORD_NUMBER[_word] for _word in _words]] = _kind
for _kind, _words in FIELDS.items():
    known_fields[_kind, [WORD_NUMBER[_word] for _word in _words]] = True


class Tables(NamedTuple):
    """Arrays with spare rows; ``count`` has the number of used rows. Arrays named ``..._slots`` find rows by their hash."""

    count: Any
    stack: Any
    marks: Any
    memo: Any
    word_ends: Any
    text: Any
    word_slots: Any
    wide: Any
    """(TOO_LARGE, WHOLE, FLOAT or UNSIGNED; the number, or the bits of the float)"""
    dicts: Any
    """Row << 4 | kind. The row of a dict of kind OTHER is its newest pair, or -1."""
    lists: Any
    """(length << 2 | contents; first and last run, or start in ``flat``, or stack)"""
    runs: Any
    """(row << 4 | kind, or number of the item << 4 | tag; number of consecutive rows; next run of the list)"""
    pairs: Any
    """(key, value, earlier pair)"""
    pools: Any
    pool_slots: Any
    frames: Any
    """(file, line, function)"""
    frame_slots: Any
    flat: Any
    stacks: Any
    """(start in ``flat``, length)"""
    stack_slots: Any
    action: Any
    address: Any
    size_bytes: Any
    stream: Any
    time_ns: Any
    pool: Any
    stack_of: Any
    segments: Any
    """(device, address, size, stream, large, pool, expandable, list of blocks). ``large`` is -2 or less for an unknown word."""
    blocks: Any
    """(address, size, requested, state, stack). The state is negative for an unknown word."""
    labels: Any
    """(event, word of the field, number of a word or list), for optional fields that few events have."""
    annotations: Any
    """(1 for an end and 0 for a start, device, nanoseconds, word); -1 is unknown."""
    unknown: Any
    """(kind, word, number of times) of unknown fields and actions, and of values that are out of range."""


(
    AT, HEIGHT, MARKED, MEMO, WORDS, TEXT, WIDES, DICTS, LISTS, RUNS, PAIRS, POOLS, FRAMES, FLAT, STACKS, EVENTS,
    SEGMENTS, BLOCKS, LABELS, ANNOTATIONS, UNKNOWN, NEED, FAULT_WORD, FAULT_ITEM, FAULT_KIND, SEED, COUNTS,
) = range(27)  # fmt: skip
"""Positions in ``Tables.count``.

AT      position in the bytes
NEED    number of rows or bytes that were needed
FAULT   word, item and kind of an invalid field
SEED    seed of the hashes, random for each file, so that nobody can craft words that all collide
"""

_GROUPS: Final[dict[int, tuple[str, ...]]] = {
    HEIGHT: ("stack",), MARKED: ("marks",), MEMO: ("memo",), WORDS: ("word_ends", "word_slots"), TEXT: ("text",),
    WIDES: ("wide",), DICTS: ("dicts",), LISTS: ("lists",), RUNS: ("runs",), PAIRS: ("pairs",),
    POOLS: ("pools", "pool_slots"), FRAMES: ("frames", "frame_slots"), FLAT: ("flat",), STACKS: ("stacks", "stack_slots"),
    EVENTS: ("action", "address", "size_bytes", "stream", "time_ns", "pool", "stack_of"),
    SEGMENTS: ("segments",), BLOCKS: ("blocks",), LABELS: ("labels",), ANNOTATIONS: ("annotations",),
    UNKNOWN: ("unknown",),
}  # fmt: skip
"""Arrays that grow together, by their position in ``Tables.count``."""
_WIDTHS: Final = {
    "wide": 2, "lists": 3, "runs": 3, "pairs": 3, "pools": 2, "frames": 3, "stacks": 2, "segments": 8, "blocks": 5,
    "labels": 3, "annotations": 4, "unknown": 3,
}  # fmt: skip
_DTYPES: Final[dict[str, type[np.generic]]] = {
    "text": np.uint8, "frames": np.int32, "flat": np.int32, "action": np.uint8, "pool": np.int32, "stack_of": np.int32,
}  # fmt: skip
_FIRST_ROWS: Final = 4096


class Grown(MemoryError):
    """The contents of the file would take more memory than allowed."""


def empty_tables() -> Tables:
    """Return empty tables."""
    tables = Tables(
        count=np.zeros(COUNTS, np.int64),
        **{name: _array(name, _FIRST_ROWS) for names in _GROUPS.values() for name in names},
    )
    tables.count[SEED] = secrets.randbits(62)
    return tables


def _array(name: str, rows: int) -> npt.NDArray[Any]:
    if name.endswith("_slots"):
        return np.full(1 << (2 * rows - 1).bit_length(), -1, np.int32)
    return np.empty((rows, _WIDTHS[name]) if name in _WIDTHS else rows, _DTYPES.get(name, np.int64))


def with_room(tables: Tables, what: int, rows: int, max_bytes: int) -> Tables:
    """Return the tables with room for this many more rows. Raises Grown if they would take more than ``max_bytes`` in total.

    Columns grow in place, because a copy would take their memory twice, and by at least a quarter.
    """
    used = int(tables.count[what])
    capacity = used + max(rows, used // 4, _FIRST_ROWS)
    slots = {}
    for name in _GROUPS[what]:
        column = getattr(tables, name)
        if name.endswith("_slots"):
            if len(column) < 2 * capacity:
                slots[name] = _array(name, capacity)
            continue
        wanted = column.nbytes // len(column) * (capacity - len(column))
        if sum(array.nbytes for array in tables) + wanted > max_bytes:
            raise Grown
        column.resize((capacity, *column.shape[1:]), refcheck=False)
    return tables._replace(**slots)


def words_of(tables: Tables, rows: Sequence[int] | npt.NDArray[Any]) -> list[str]:
    """Return the words with these numbers."""
    ends, text = tables.word_ends, tables.text
    return [
        text[(ends[at - 1] if at else 0) : ends[at]].tobytes().decode("utf-8", "replace")
        for at in np.asarray(rows).tolist()
    ]
