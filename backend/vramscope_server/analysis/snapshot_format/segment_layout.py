"""Segments and blocks of a snapshot file as a layout of memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope.protocol.window import STATES
from vramscope_server.analysis.snapshot_format.items import Items, flattened
from vramscope_server.analysis.snapshot_format.odd_values import MOST_BYTES, OddValues, is_beyond
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import BEYOND, BLOCK, MISSING, SEGMENT, Tables, words_of
from vramscope_server.analysis.snapshot_format.stream import BadSnapshot
from vramscope_server.analysis.trace.trace import checked
from vramscope_server.analysis.trace.types import Blocks, Layout, Segments, rows_of

_SMALL_SEGMENT_BYTES: Final = 2 << 20
"""PyTorch's segments for small blocks have this size; others are larger."""
_INACTIVE: Final = STATES.index("inactive")


def layout_of(segments: Any, tables: Tables, items: Items, odd: OddValues) -> Layout:
    """Return the memory of a device when the snapshot was taken, from rows of its segments. Raises BadSnapshot."""
    segments = segments[np.argsort(segments[:, 1], kind="stable")]
    for at, field in ((1, "address"), (2, "total_size"), (7, "blocks")):
        if len(segments) and segments[:, at].min() == (-1 if at == 7 else MISSING):
            raise BadSnapshot(f"{field} of a segment: missing")
    codes, lengths = flattened(tables.lists, tables.runs, segments[:, 7])
    blocks = tables.blocks[items.of_kind(codes, BLOCK, "a block")]
    if len(blocks) and blocks[:, 1].min() == MISSING:
        raise BadSnapshot("size of a block: missing, expected an integer")
    segments, blocks, lengths = _possible(segments, blocks, lengths, odd)
    size = blocks[:, 1]
    home = np.repeat(np.arange(len(segments)), lengths)
    # Older versions give no address of a block: blocks fill their segment in order.
    before = np.cumsum(size) - size
    first = np.cumsum(lengths) - lengths
    earlier = before[np.minimum(first, max(len(size) - 1, 0))] if len(size) else np.zeros(len(segments), np.int64)
    rows = {
        "address": segments[:, 1], "size_bytes": segments[:, 2], "stream": segments[:, 3],
        "large": _large(segments, tables, odd), "expandable": segments[:, 6],
        "pool": odd.replaced(segments[:, 5], -3, "segment_pool_id", SEGMENT, 0),
    }  # fmt: skip
    requested = odd.replaced(blocks[:, 2], BEYOND, "requested_size", BLOCK, -1)
    fields = {
        "segment": home,
        "address": rows["address"][home] + before - earlier[home],
        "size_bytes": size,
        "requested_bytes": np.where(requested < 0, size, requested),
        "state": _states(blocks[:, 3], tables, odd),
        "stack": blocks[:, 4],
    }
    return checked(Layout(rows_of(Segments, rows), rows_of(Blocks, fields)), "snapshot")


def _possible(segments: Any, blocks: Any, lengths: Any, odd: OddValues) -> Any:
    """Leave out segments whose address or size is out of range, and their blocks."""
    beyond = is_beyond(segments[:, 1]) | (segments[:, 2] == BEYOND) | (segments[:, 2] > MOST_BYTES)
    home = np.repeat(np.arange(len(segments)), lengths)
    beyond[home[(blocks[:, 1] == BEYOND) | (blocks[:, 1] > MOST_BYTES)]] = True
    if not beyond.any():
        return segments, blocks, lengths
    odd.out_of_range("address or size", SEGMENT, int(beyond.sum()))
    return segments[~beyond], blocks[~beyond[home]], lengths[~beyond]


def _large(segments: Any, tables: Tables, odd: OddValues) -> Any:
    """Return which segments are for large blocks: by their type, or by their size where the type is unknown."""
    sizes = segments[:, 4]
    for word, often in zip(*np.unique(sizes[sizes < 0], return_counts=True), strict=True):
        text = "missing" if word == MISSING else f"{words_of(tables, [-2 - word])[0]:.40}, unknown to this version"
        odd.remark(f"segment_type of a segment: {text}; derived from its size", int(often))
    return np.where(sizes < 0, segments[:, 2] > _SMALL_SEGMENT_BYTES, sizes)


def _states(states: Any, tables: Tables, odd: OddValues) -> Any:
    """Return the states of blocks. An unknown one counts as free, as in PyTorch's viewer."""
    for word, often in zip(*np.unique(states[states < 0], return_counts=True), strict=True):
        text = f"{words_of(tables, [-1 - word])[0]:.40}"
        odd.remark(f"the state {text} of a block: unknown to this version, treated as free", int(often))
    return np.where(states < 0, _INACTIVE, states)
