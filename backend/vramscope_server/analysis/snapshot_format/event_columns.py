"""Selects the valid events of a snapshot file, and converts them to columns."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from vramscope.protocol.window import ACTIONS
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.snapshot_format.odd_values import MOST_BYTES, OddValues, is_beyond
from vramscope_server.analysis.snapshot_format.pickle_vm.tables import BEYOND, EVENT, MISSING, Tables
from vramscope_server.analysis.snapshot_format.stream import BadSnapshot
from vramscope_server.analysis.trace.duplicate_events import repeats
from vramscope_server.analysis.trace.trace import MAX_ADDRESS
from vramscope_server.analysis.trace.types import Events

_COLUMNS: Final = {
    "action": "action", "address": "address", "size_bytes": "size_bytes", "stream": "stream", "time_ns": "time_ns", "pool": "pool",
    "stack": "stack_of",
}  # fmt: skip
"""Fields of Events in a file, and their names in the tables."""
_FOREIGN_ACTION: Final = 255
_OOM: Final = ACTIONS.index("oom")


def known_events(rows: range | IntArray, tables: Tables, odd: OddValues) -> Any:
    """Return the rows of valid events: the action is known, all values are in range, and the event is not a duplicate.

    The result is a slice if all rows are valid and consecutive.
    """
    which: Any = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
    action, size = tables.action[which], tables.size_bytes[which]
    foreign = action == _FOREIGN_ACTION
    beyond = is_beyond(tables.address[which]) | (size > MOST_BYTES)
    beyond &= action != _OOM  # its address column has the free bytes instead, and the failed request may have any size
    beyond |= size == BEYOND
    beyond &= ~foreign
    if beyond.any():
        odd.out_of_range("addr or size", EVENT, int(beyond.sum()))
    again = repeats(*(getattr(tables, column)[which] for column in _COLUMNS.values())) & ~foreign & ~beyond
    if again.any():
        odd.remark("a duplicate event: left out", int(again.sum()))
    if (out := foreign | beyond | again).any():
        which = np.arange(len(tables.action))[which][~out]
    return which


def events_of(which: Any, tables: Tables, odd: OddValues) -> tuple[Events, bool]:
    """Return the events, and whether the file contains their pools. Consecutive rows are not copied."""
    columns: dict[str, Any] = {name: getattr(tables, column)[which] for name, column in _COLUMNS.items()}
    for name, field in (("address", "addr"), ("size_bytes", "size")):
        if not len(columns[name]):
            continue
        if columns[name].min() == MISSING:
            raise BadSnapshot(f"{field} of an event: missing, expected an integer")
    columns["time_ns"] = odd.replaced(columns["time_ns"], BEYOND, "time_us", EVENT, -1)
    columns["pool"] = odd.replaced(columns["pool"], -3, "pool_id", EVENT, -1)
    oom = np.flatnonzero(columns["action"] == _OOM)
    columns["address"][oom] = odd.replaced(columns["address"][oom], BEYOND, "device_free", EVENT, -1)
    if columns["size_bytes"].sum(where=columns["action"] != _OOM, dtype=np.float64) > MAX_ADDRESS:
        raise BadSnapshot("size of the events: their sum is out of range")
    count = len(columns["action"])
    events = Events(
        **columns,
        step=np.full(count, -1, np.int32),
        phase=np.full(count, -1, np.int8),
        module=np.full(count, -1, np.int32),
    )
    return events, bool(count and columns["pool"][0] >= 0)
