"""Tables of a trace: events, segments, blocks and the layout of memory at one event.

The columns are those of ``vramscope.protocol.window``, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from vramscope.protocol.window import ACTIONS, STATES
from vramscope_server.analysis.array_types import IntArray

Integers = npt.NDArray[Any]
Ids = npt.NDArray[np.int32]
Codes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = (
    ACTIONS.index(word)
    for word in (
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
    )
)  # fmt: skip
_DTYPES: Final[dict[str, type[np.generic]]] = {
    "action": np.uint8, "state": np.uint8, "large": np.uint8, "expandable": np.uint8, "phase": np.int8, "pool": np.int32,
    "stack": np.int32, "step": np.int32, "module": np.int32, "segment": np.int32,
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """One row per event, in the allocator's order. See window.EVENTS; -1 is unknown."""

    action: Codes
    address: IntArray
    size_bytes: IntArray
    stream: IntArray
    time_ns: IntArray
    pool: Ids
    stack: Ids
    step: Ids
    phase: npt.NDArray[np.int8]
    module: Ids

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """One row per segment or mapped range, sorted by address. See window.SEGMENTS."""

    address: IntArray
    size_bytes: IntArray
    stream: IntArray
    large: Codes
    expandable: Codes
    pool: Ids

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One row per block, sorted by address. Blocks fill their segments. See window.BLOCKS."""

    segment: Ids
    address: IntArray
    size_bytes: IntArray
    requested_bytes: IntArray
    state: Codes
    stack: Ids

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Segments and blocks of the allocator at one event."""

    segments: Segments
    blocks: Blocks
    counters: dict[str, int] = field(default_factory=dict)
    """Flattened torch.cuda.memory_stats() at this event. Empty if it was not read."""

    @property
    def reserved_bytes(self) -> int:
        return int(self.segments.size_bytes.sum())

    @property
    def allocated_bytes(self) -> int:
        """Bytes in blocks that tensors own, rounding included."""
        return int(self.blocks.size_bytes[self.blocks.state == STATES.index("active_allocated")].sum())


Rows = TypeVar("Rows", Events, Segments, Blocks)


def rows_of(kind: type[Rows], columns: dict[str, Integers]) -> Rows:
    """Build a table from columns of any integer type. Each column gets the type of its field."""
    return kind(**{name: column.astype(_DTYPES.get(name, np.int64)) for name, column in columns.items()})
