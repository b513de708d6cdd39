"""Converts a snapshot's segments and blocks of one device to the columns of a window's layout."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from itertools import accumulate, repeat
from operator import itemgetter
from typing import Final

from vramscope.memory.pools import DEFAULT, Pools
from vramscope.memory.pytorch_snapshot import SnapshotBlock, SnapshotSegment
from vramscope.memory.stack_table import Stacks
from vramscope.protocol.window import BLOCKS, STATES, Layout

SLICE_BLOCKS: Final = 1000
"""Blocks in one slice: about 1 ms, then the interpreter's lock is released."""

_address, _size, _total_size, _stream = map(itemgetter, ("address", "size", "total_size", "stream"))
_STATES: Final = {name: code for code, name in enumerate(STATES)} | {"active_awaiting_free": 2}


def layout(
    segments: list[SnapshotSegment], pools: Pools, stacks: Stacks, counters: dict[str, int], pause: Callable[[], None]
) -> Layout:
    """Convert the segments of one device, which lose their blocks. ``pause`` is called between slices.

    About 1 µs a block: whole columns at a time, as in events.py.
    """
    segments.sort(key=_address)
    segment_columns = {
        "address": array("q", map(_address, segments)),
        "size_bytes": array("q", map(_total_size, segments)),
        "stream": array("q", map(_stream, segments)),
        "large": array("q", [segment["segment_type"] == "large" for segment in segments]),
        "expandable": array("q", [bool(segment.get("is_expandable", False)) for segment in segments]),
        "pool": array("q", pools.numbers([segment.get("segment_pool_id", DEFAULT) for segment in segments])),
    }
    block_columns = {name: array("q") for name in BLOCKS}
    waiting: list[SnapshotBlock] = []
    for number, segment in enumerate(segments):
        blocks = segment.pop("blocks")
        sizes = list(map(_size, blocks))
        block_columns["segment"].extend(repeat(number, len(blocks)))
        block_columns["address"].extend(accumulate(sizes[:-1], initial=segment["address"]) if sizes else ())
        block_columns["size_bytes"].extend(sizes)
        waiting += blocks
        if len(waiting) > SLICE_BLOCKS:
            _add(block_columns, waiting, stacks)
            waiting.clear()
            pause()
    _add(block_columns, waiting, stacks)
    return Layout(segments=_bytes(segment_columns), blocks=_bytes(block_columns), counters=counters)


def _add(columns: dict[str, array[int]], blocks: list[SnapshotBlock], stacks: Stacks) -> None:
    """Add the columns that do not follow from the blocks' positions."""
    columns["requested_bytes"].extend([block.get("requested_size", block["size"]) for block in blocks])
    columns["state"].extend([_STATES[block["state"]] for block in blocks])
    columns["stack"].extend(stacks.numbers([block.get("frames") for block in blocks]))


def _bytes(columns: dict[str, array[int]]) -> dict[str, bytes]:
    return {name: column.tobytes() for name, column in columns.items()}
