"""Converts a recorded window to a trace, after validation of its columns."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

import numpy as np

from vramscope.protocol.series import MOST_PHASES, PHASES, UNKNOWN
from vramscope.protocol.window import ACTIONS, MOST_CATEGORIES, OWNER_CATEGORIES, STATES, BadWindow, Columns, Window
from vramscope.protocol.window import Layout as RecordedLayout
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.stacks import Stacks
from vramscope_server.analysis.trace.trace import MAX_ADDRESS, Trace, checked
from vramscope_server.analysis.trace.types import Blocks, Events, Layout, Rows, Segments, rows_of

_LIMITS: Final = {"action": len(ACTIONS) - 1, "phase": len(PHASES) - 1, "state": len(STATES) - 1}

UNUSED_STACKS: Final = 100_000
"""Stacks that no event and no block has. The agent sends none; each costs memory and time."""

UNKNOWN_CATEGORY: Final = len(OWNER_CATEGORIES)
"""Code of all categories of newer agents: the owner has a name, but its purpose is not known."""


def from_window(window: Window) -> Trace:
    """Convert a recorded window. Raises BadWindow with the column's name if a value is impossible."""
    bounds = {
        **_LIMITS,
        "pool": len(window.pools) - 1,
        "module": len(window.modules) - 1,
        "stack": len(window.stacks) - 1,
        "file": len(window.words) - 1,
        "function": len(window.words) - 1,
        "event": len(window.events["action"]) // 8 if window.events else 0,
        "category": UNKNOWN_CATEGORY,
        "name": len(window.owner_names) - 1,
        "holding": len(window.holdings) - 1,
    }
    _check_scans(window, bounds["event"])
    layouts = [layout for layout in (window.start, window.end) if layout is not None]
    users = bounds["event"] + sum(len(layout.blocks.get("stack", b"")) // 8 for layout in layouts)
    if len(window.stacks) > users + UNUSED_STACKS:
        raise BadWindow(f"stacks: {len(window.stacks)} for {users} events and blocks")
    frames = {name: _column("frames", name, data, bounds) for name, data in window.frames.items()}
    deepest = len(frames["line"]) if frames else 0
    bad_frame = BadWindow(f"stacks: a frame number outside of {deepest} frames")
    try:
        stacks = Stacks.of(window.stacks)
    except OverflowError:
        raise bad_frame from None
    if len(stacks.flat) and not 0 <= int(stacks.flat.min()) <= int(stacks.flat.max()) < deepest:
        raise bad_frame
    return Trace(
        **{
            name: getattr(window, name)
            for name in (
                "device", "device_name", "device_total_bytes", "device_free_bytes", "limit_bytes", "torch", "cuda",
                "backend", "settings", "settings_in_force", "reason", "first_step", "last_step", "lost_events", "pools",
                "modules", "words",
            )
        },
        start=None if window.start is None else _layout("start", window.start, bounds),
        end=_layout("end", window.end, bounds),
        events=_table(Events, "events", window.events, bounds),
        frames={name: column.astype(np.int32) for name, column in frames.items()},
        stacks=stacks,
        notes=list(window.notes),
        owners={name: _column("owners", name, data, bounds) for name, data in window.owners.items()},
        owner_names=window.owner_names,
        held={name: _column("held", name, data, bounds) for name, data in window.held.items()},
        holdings=window.holdings,
        scans=window.scans,
        settings_before=window.settings_before,
        emptied=window.emptied,
    )  # fmt: skip


def _check_scans(window: Window, events: int) -> None:
    if any(not 0 <= event <= events for event in window.scans):
        raise BadWindow(f"scans: an event outside of {events} events")
    if any(event > events for event in window.emptied):
        raise BadWindow(f"emptied: an event outside of {events} events")
    if window.settings_before is not None and window.settings_before.until_event > events:
        raise BadWindow(f"settings_before: an event outside of {events} events")
    for at, holding in enumerate(window.holdings):
        if len(holding.counted_bytes) != len(window.scans):
            raise BadWindow(
                f"holdings.{at}.counted_bytes: {len(holding.counted_bytes)} values for {len(window.scans)} scans"
            )


def _layout(where: str, layout: RecordedLayout, bounds: dict[str, int]) -> Layout:
    segments = _table(Segments, f"{where}.segments", layout.segments, bounds)
    bounds = {**bounds, "segment": len(segments) - 1}
    blocks = _table(Blocks, f"{where}.blocks", layout.blocks, bounds)
    made = Layout(segments, blocks, dict(layout.counters))
    return checked(made, where)


def _column(where: str, name: str, data: bytes, bounds: dict[str, int]) -> IntArray:
    column = np.frombuffer(data, "<i8")
    if name == "phase":  # phases of newer agents are unknown
        column = np.where((column >= len(PHASES)) & (column < MOST_PHASES), UNKNOWN, column)
    if name == "category":
        column = np.where((column > UNKNOWN_CATEGORY) & (column < MOST_CATEGORIES), UNKNOWN_CATEGORY, column)
    highest = bounds.get(name, MAX_ADDRESS)
    if len(column) and (int(column.min()) < -1 or int(column.max()) > highest):
        if name == "stream":  # a stream handle may have any value
            return column
        raise BadWindow(f"{where}.{name}: {int(column.min())} to {int(column.max())}, allowed are -1 to {highest}")
    if len(column) and name in ("action", "state", "address", "size_bytes") and int(column.min()) < 0:
        raise BadWindow(f"{where}.{name}: {int(column.min())}, but it must be known")
    return column


def _table(kind: type[Rows], where: str, columns: Columns, bounds: dict[str, int]) -> Rows:
    return rows_of(
        kind, {one.name: _column(where, one.name, columns.get(one.name, b""), bounds) for one in fields(kind)}
    )
