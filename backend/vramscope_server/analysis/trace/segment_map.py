"""Segment map: all segments at one event end to end, and the use of each part.

Segments are sorted by pool, stream, size class and address, without gaps. An *offset* counts bytes in this order. Blocks fill
their segments, so the bytes between two offsets are a difference of running sums: a map of any number of blocks takes one pass
and is exact in each cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypedDict

import numpy as np

from vramscope.protocol.window import STATES
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.analysis.trace.frames import brief, is_library, is_native, is_recording
from vramscope_server.analysis.trace.trace import Trace, address_as_json
from vramscope_server.analysis.trace.types import Layout

INACTIVE: Final = STATES.index("inactive")
ALLOCATED: Final = STATES.index("active_allocated")
PENDING: Final = STATES.index("active_pending_free")


class StackFrame(TypedDict):
    """A frame of a call stack."""

    file: str
    line: int
    function: str
    library: bool
    """Whether the file belongs to a library."""


class SegmentFacts(TypedDict):
    """A segment of the map."""

    address: int | str | None
    size_bytes: int
    pool: str
    """``large`` or ``small``."""
    private_pool: list[int] | None
    expandable: bool
    stream: int


class BlockFacts(TypedDict):
    """A block of the map."""

    address: int | str | None
    size_bytes: int
    requested_bytes: int | None
    """Requested bytes; None for a free block, or if unknown."""
    state: str
    """One of window.STATES."""
    stack: list[StackFrame]
    segment: SegmentFacts


@dataclass(frozen=True, eq=False)
class LinearLayout:
    """Layout with its segments end to end. Arrays are sorted by offset."""

    layout: Layout

    @cached_property
    def segment_order(self) -> IntArray:
        """Positions of the segments in this order."""
        segments = self.layout.segments
        return np.lexsort((segments.address, -segments.large.astype(np.int64), segments.stream, segments.pool))

    @cached_property
    def segment_starts(self) -> IntArray:
        """Offset of each segment in this order."""
        sizes = self.layout.segments.size_bytes[self.segment_order]
        return np.cumsum(sizes) - sizes

    @cached_property
    def block_order(self) -> IntArray:
        """Positions of the blocks, sorted by offset."""
        return np.argsort(self._block_offsets, kind="stable")

    @cached_property
    def block_starts(self) -> IntArray:
        """Offset of each block, sorted."""
        starts: IntArray = self._block_offsets[self.block_order]
        return starts

    @property
    def size_bytes(self) -> int:
        """Reserved bytes."""
        return self.layout.reserved_bytes

    @cached_property
    def _block_offsets(self) -> IntArray:
        segments, blocks = self.layout.segments, self.layout.blocks
        start_of = np.empty(len(segments), np.int64)
        start_of[self.segment_order] = self.segment_starts
        home = blocks.segment
        offsets: IntArray = start_of[home] + blocks.address - segments.address[home]
        return offsets


@dataclass(frozen=True, eq=False)
class Cells:
    """Part of the layout as lines of equal cells. Arrays of shape (lines, columns) with shares of a cell, 0 to 1."""

    low: int
    high: int
    cell_bytes: float
    used: FloatArray
    """Requested bytes of allocated blocks."""
    pending: FloatArray
    """Freed by the program, but still used by another stream."""
    rounding: FloatArray
    """Allocated minus requested bytes."""


def cells(row: LinearLayout, low: int, high: int, lines: int, columns: int) -> Cells:
    """Cells of the offsets from ``low`` to ``high``. O(blocks + cells)."""
    blocks = row.layout.blocks
    order = row.block_order
    size, state = blocks.size_bytes[order], blocks.state[order]
    requested = np.minimum(blocks.requested_bytes[order], size)
    edges = np.append(row.block_starts, row.size_bytes)
    at = np.linspace(low, high, lines * columns + 1)
    cell_bytes = (high - low) / (lines * columns)

    def share(bytes_of: IntArray) -> FloatArray:
        sums = np.interp(at, edges, np.append(0, np.cumsum(bytes_of)))
        shares: FloatArray = (np.diff(sums) / cell_bytes).reshape(lines, columns)
        return np.clip(shares, 0.0, 1.0)

    allocated = state == ALLOCATED
    return Cells(
        low,
        high,
        cell_bytes,
        used=share(np.where(allocated, requested, 0)),
        pending=share(np.where(state == PENDING, size, 0)),
        rounding=share(np.where(allocated, size - requested, 0)),
    )


def blocks_between(row: LinearLayout, low: int, high: int) -> IntArray:
    """Positions, in this order, of the blocks that overlap the offsets from ``low`` to ``high``."""
    first = int(np.searchsorted(row.block_starts, low, side="right")) - 1
    end = int(np.searchsorted(row.block_starts, high, side="left"))
    return np.arange(max(first, 0), end)


def block_at(row: LinearLayout, offset: int) -> int | None:
    """Position in the layout of the block at an offset; None beyond the end."""
    if not 0 <= offset < row.size_bytes:
        return None
    return int(row.block_order[int(np.searchsorted(row.block_starts, offset, side="right")) - 1])


def describe(trace: Trace, row: LinearLayout, block: int) -> BlockFacts:
    """Description of a block for the map."""
    segments, blocks = row.layout.segments, row.layout.blocks
    home = int(blocks.segment[block])
    state = STATES[int(blocks.state[block])]
    requested = int(blocks.requested_bytes[block])
    return {
        "address": address_as_json(blocks.address[block]),
        "size_bytes": int(blocks.size_bytes[block]),
        "requested_bytes": None if state == "inactive" or requested < 0 else requested,
        "state": state,
        "stack": stack_lines(trace, int(blocks.stack[block])),
        "segment": {
            "address": address_as_json(segments.address[home]),
            "size_bytes": int(segments.size_bytes[home]),
            "pool": "large" if segments.large[home] else "small",
            "private_pool": list(trace.pools[int(segments.pool[home])]) if int(segments.pool[home]) > 0 else None,
            "expandable": bool(segments.expandable[home]),
            "stream": int(segments.stream[home]),
        },
    }


def stack_lines(trace: Trace, stack: int) -> list[StackFrame]:
    """Frames of a stack, innermost first; empty if none was recorded."""
    if not 0 <= stack < len(trace.stacks):
        return []
    frames = [_frame(trace, at) for at in trace.stacks[stack]]
    return [one for one in frames if not is_recording(one["function"])]


def _frame(trace: Trace, at: int) -> StackFrame:
    file, function = (_word(trace, int(trace.frames[what][at])) for what in ("file", "function"))
    return {
        "file": file,
        "line": int(trace.frames["line"][at]),
        "function": brief(function) if is_native(file) else function,
        "library": is_library(file),
    }


def _word(trace: Trace, at: int) -> str:
    return trace.words[at] if 0 <= at < len(trace.words) else "unknown"
