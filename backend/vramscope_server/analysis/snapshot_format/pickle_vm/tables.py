"""What a snapshot becomes while it is read: tables of numbers that grow, in place of the objects that a pickle makes.

An item is one number: what it is in its lowest bits, and above them a whole number, or a row of a table.
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
"""What an item is. POOL: a tuple of two whole numbers; WIDE: a float, or what 61 bits do not hold."""
TAG_BITS: Final = 3
NONE, TRUE, FALSE, OTHER_TUPLE = range(4)
"""The constants."""
NEW, OTHER, FRAME, ANNOTATION, SEGMENT, BLOCK, EVENT = range(8, 15)
"""What a dict is, by its keys; of several the last. NEW: still empty; OTHER: its pairs are kept as they are."""
KIND_BITS: Final = 4
USED_FRAME: Final = 1 << 61
"""Marks a frame in ``dicts`` that is in a list already."""
EMPTY_LIST, FRAMES_LIST, STACK_LIST, ROWS_LIST = range(4)
"""What a list holds: nothing; frames; frames, done, and so a stack; any things, in runs of following rows."""
TOO_LARGE, WHOLE, FLOAT, UNSIGNED = range(4)
"""What a wide item is. UNSIGNED: a whole number from 2**63 up to 2**64; as TOO_LARGE, its lowest 64 bits are kept."""
MISSING: Final = -(1 << 63)
"""Value of a field that is missing."""
BEYOND: Final = MISSING + 1
"""Value of a field that is present and above the possible range."""
BEYOND_KIND: Final = 16
"""Marks a value above the possible range in ``unknown``, added to the kind of its owner."""

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
"""Known here; of events, blocks and segments others are counted."""
_TELLING: Final = {
    FRAME: ("filename", "line"), ANNOTATION: ("stage",), SEGMENT: ("total_size", "segment_type", "blocks"),
    BLOCK: ("state",), EVENT: ("action",),
}  # fmt: skip
"""Keys by which a dict is known for what it is."""
KNOWN_WORDS: Final = tuple(
    dict.fromkeys((*ACTIONS, *_STATES, *_VALUES, *itertools.chain.from_iterable(FIELDS.values())))
)
"""Words whose numbers stand fixed, actions first: their codes are their numbers."""
WORD_NUMBER: Final = {word: at for at, word in enumerate(KNOWN_WORDS)}
FIRST_STATE: Final = WORD_NUMBER[STATES[0]]

kind_by_word: Final = np.full(len(KNOWN_WORDS), OTHER, np.int64)
known_fields: Final = np.zeros((EVENT + 1, len(KNOWN_WORDS)), np.bool_)
for _kind, _words in _TELLING.items():
    kind_by_word[[WORD_NUMBER[_word] for _word in _words]] = _kind
for _kind, _words in FIELDS.items():
    known_fields[_kind, [WORD_NUMBER[_word] for _word in _words]] = True


class Tables(NamedTuple):
    """Arrays of a fixed length, of which the rows up to ``Count`` are in use. What holds ``slots`` finds rows by their hash."""

    count: Any
    stack: Any
    marks: Any
    memo: Any
    word_ends: Any
    text: Any
    word_slots: Any
    wide: Any
    """(TOO_LARGE, WHOLE, FLOAT or UNSIGNED; the number, or the float's bits)"""
    dicts: Any
    """Row << 4 | kind; for OTHER the row is its newest pair, or -1."""
    lists: Any
    """(length << 2 | what it holds; first and last run, or begin among ``flat``, or stack)"""
    runs: Any
    """(row << 4 | kind, or item's number << 4 | tag; how many that follow each other; next run of the list)"""
    pairs: Any
    """(key, value, earlier pair)"""
    pools: Any
    pool_slots: Any
    frames: Any
    """(file, line, function)"""
    frame_slots: Any
    flat: Any
    stacks: Any
    """(begin among ``flat``, length)"""
    stack_slots: Any
    action: Any
    address: Any
    size_bytes: Any
    stream: Any
    time_ns: Any
    pool: Any
    stack_of: Any
    segments: Any
    """(device, address, size, stream, large, pool, expandable, list of blocks); large: -2 and less is a word not known here"""
    blocks: Any
    """(address, size, requested, state, stack); a state below 0 is a word not known here"""
    labels: Any
    """(event, word of the field, number of a word or list): what few events have"""
    annotations: Any
    """(1 if it ends here, device, nanoseconds, word); -1 is unknown"""
    unknown: Any
    """(kind, word, times) of fields and actions that are not known here, and of fields that are beyond what can be"""


(
    AT, HEIGHT, MARKED, MEMO, WORDS, TEXT, WIDES, DICTS, LISTS, RUNS, PAIRS, POOLS, FRAMES, FLAT, STACKS, EVENTS,
    SEGMENTS, BLOCKS, LABELS, ANNOTATIONS, UNKNOWN, NEED, FAULT_WORD, FAULT_ITEM, FAULT_KIND, SEED, COUNTS,
) = range(27)  # fmt: skip
"""Positions in ``Tables.count``. AT: in the bytes; NEED: rows or bytes that were wanted; FAULT: what was wrong; SEED: of the
hashes, drawn for each file, so that nobody can craft words that all collide."""

_GROUPS: Final[dict[int, tuple[str, ...]]] = {
    HEIGHT: ("stack",), MARKED: ("marks",), MEMO: ("memo",), WORDS: ("word_ends", "word_slots"), TEXT: ("text",),
    WIDES: ("wide",), DICTS: ("dicts",), LISTS: ("lists",), RUNS: ("runs",), PAIRS: ("pairs",),
    POOLS: ("pools", "pool_slots"), FRAMES: ("frames", "frame_slots"), FLAT: ("flat",), STACKS: ("stacks", "stack_slots"),
    EVENTS: ("action", "address", "size_bytes", "stream", "time_ns", "pool", "stack_of"),
    SEGMENTS: ("segments",), BLOCKS: ("blocks",), LABELS: ("labels",), ANNOTATIONS: ("annotations",),
    UNKNOWN: ("unknown",),
}  # fmt: skip
"""Arrays that have one row each for what is counted."""
_WIDTHS: Final = {
    "wide": 2, "lists": 3, "runs": 3, "pairs": 3, "pools": 2, "frames": 3, "stacks": 2, "segments": 8, "blocks": 5,
    "labels": 3, "annotations": 4, "unknown": 3,
}  # fmt: skip
_DTYPES: Final[dict[str, type[np.generic]]] = {
    "text": np.uint8, "frames": np.int32, "flat": np.int32, "action": np.uint8, "pool": np.int32, "stack_of": np.int32,
}  # fmt: skip
_FIRST_ROWS: Final = 4096


class Grown(MemoryError):
    """What the file holds takes more memory than it may."""


def made() -> Tables:
    """Empty ones."""
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
    """Returns the table with room for this many more rows. Raises Grown where all of them would take more than ``max_bytes``.

    Grows in place, by a quarter at least: to copy a column would take its memory twice.
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
    """The words of these numbers."""
    ends, text = tables.word_ends, tables.text
    return [
        text[(ends[at - 1] if at else 0) : ends[at]].tobytes().decode("utf-8", "replace")
        for at in np.asarray(rows).tolist()
    ]
