"""A trace: the events of one device's CUDA allocator as numpy arrays, and its memory layout at any event.

It is built from a recorded window (``from_window``) or a PyTorch snapshot (``snapshot_format.reader``). The columns are
those of ``vramscope.protocol.window``, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np

from vramscope.protocol.window import STATES, BadWindow, Holding, SettingsBefore
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.settings import AllocatorSettings
from vramscope_server.analysis.simulator.timed_settings import ReportedSettings as SettingsInForce
from vramscope_server.analysis.trace import allocator_config
from vramscope_server.analysis.trace.annotations import Annotations
from vramscope_server.analysis.trace.annotations import none as no_annotations
from vramscope_server.analysis.trace.block_sizes import Rounding
from vramscope_server.analysis.trace.lifetimes import (
    AllocationLifetimes,
    SegmentLifetimes,
    lifetimes_of,
    segment_lifetimes_of,
)
from vramscope_server.analysis.trace.stacks import Stacks
from vramscope_server.analysis.trace.types import (
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Blocks,
    Events,
    Ids,
    Layout,
    Segments,
    rows_of,
)

MAX_ADDRESS: Final = 1 << 62
"""Upper bound of addresses. Addresses from 2**63 on are negative in the columns, with the same 64 bits and order."""
LABELS: Final = ("user_metadata", "compile_context", "forward_stack")
"""Optional columns of events: the program's metadata, the compiled region, and the forward stack of a backward."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """Events of one device between the layouts ``start`` and ``end``. Fields are those of window.Window."""

    device: int
    device_name: str
    device_total_bytes: int | None
    device_free_bytes: int | None
    limit_bytes: int | None
    torch: str
    cuda: str | None
    backend: str
    settings: str
    settings_in_force: dict[str, int | float | bool | str | None]
    reason: str
    first_step: int
    last_step: int
    start: Layout | None
    """Recorded layout; None if it was not recorded (see ``beginning``)."""
    end: Layout
    events: Events
    lost_events: int | None
    pools: list[tuple[int, int]]
    modules: list[str]
    words: list[str]
    frames: dict[str, Ids]
    stacks: Stacks
    notes: list[str]
    owners: dict[str, IntArray] = field(default_factory=dict)
    """Columns of window.OWNERS; empty if owners were not recorded."""
    owner_names: list[str] = field(default_factory=list)
    held: dict[str, IntArray] = field(default_factory=dict)
    """Columns of window.HELD."""
    holdings: list[Holding] = field(default_factory=list)
    scans: list[int] = field(default_factory=list)

    emptied: list[int] = field(default_factory=list)
    """As in window.Window; [] for a snapshot, which does not have it."""
    settings_before: SettingsBefore | None = None
    """As in window.Window."""

    labels: dict[str, Ids] = field(default_factory=dict)
    """Columns of LABELS that exist: positions in ``words``, or in ``stacks`` for stacks."""
    annotations: Annotations = field(default_factory=no_annotations)

    def label(self, name: str, event: int) -> str | None:
        """Text label of an event; None if it has none."""
        column = self.labels.get(name)
        word = -1 if column is None or event < 0 else int(column[event])
        return self.words[word] if word >= 0 else None

    @cached_property
    def lives(self) -> AllocationLifetimes:
        """Lifetimes of all allocations. O(events log events), once."""
        return lifetimes_of(self.events, self.start, self.end, self.segment_lives, self.rounding)

    @cached_property
    def rounding(self) -> Rounding:
        """Settings that decide on the sizes of blocks."""
        settings, _ = self.parsed_settings
        return allocator_config.rounding_of(settings, self.earlier_settings)

    def settings_at(self, event: int) -> AllocatorSettings:
        """Settings in force at an event."""
        earlier = self.earlier_settings
        return earlier[1] if earlier is not None and event < earlier[0] else self.parsed_settings[0]

    @cached_property
    def parsed_settings(self) -> tuple[AllocatorSettings, str]:
        """Settings in force at the end, and a note if they are unknown here: another version of PyTorch accepted them.

        The ``text`` of the result has all settings. ``settings`` has those that were set last, which may be a part.
        """
        return self._parsed(self.settings, self.settings_in_force, slice(None))

    @cached_property
    def earlier_settings(self) -> tuple[int, AllocatorSettings] | None:
        """Number of events before the settings changed, and the settings until then. None if they did not change."""
        earlier = self.settings_before
        if earlier is None:
            return None
        first = slice(earlier.until_event)
        return earlier.until_event, self._parsed(earlier.settings, earlier.settings_in_force, first)[0]

    def _parsed(self, text: str, in_force: SettingsInForce, part: slice) -> tuple[AllocatorSettings, str]:
        events = self.events
        return allocator_config.parsed(
            text, in_force, self.torch, (events.action[part], events.size_bytes[part], events.stream[part]),
            without_limit=self.device_total_bytes is not None and self.limit_bytes is None,
        )  # fmt: skip

    @cached_property
    def segment_lives(self) -> SegmentLifetimes:
        return segment_lifetimes_of(self.events, self.start, self.end)

    @cached_property
    def beginning(self) -> Layout:
        """Layout before the first event: recorded, or rolled back from the end as far as known.

        Raises BadWindow if contradicting events lead to an impossible layout. A replay from there would never end.
        """
        if self.start is not None:
            return self.start
        try:
            return checked(layout_at(self, -1), "the start")
        except BadWindow as fault:
            reason = "its events contradict each other, so the layout before the first event is unknown"
            raise BadWindow(f"{reason} ({fault})") from None


def layout_at(trace: Trace, event: int) -> Layout:
    """Layout after an event, counted from 0; -1 is before the first event. O(events).

    Blocks and mapped ranges are exact if the trace's start or their allocation is recorded. Blocks from before the recording
    have the size of their rounded request. Raises IndexError if there is no such event.
    """
    if not -1 <= event < len(trace.events):
        raise IndexError(f"event {event} does not exist; use 0 to {len(trace.events) - 1}, or -1 for the start")
    if event == -1 and trace.start is not None:
        return trace.start
    ranges = trace.segment_lives.at(event)
    segments = rows_of(Segments, ranges)
    lives = trace.lives
    active = lives.active_at(event)
    active = active[np.argsort(lives.address[active], kind="stable")]
    address, size = lives.address[active], lives.size_bytes[active]
    # Free blocks fill the gaps between the active ones.
    home = np.searchsorted(segments.address, address, side="right") - 1
    edges_low = np.concatenate([segments.address, address + size])
    edges_home = np.concatenate([np.arange(len(segments), dtype=np.int64), home])
    # A free block starts at a segment's start or a block's end, and ends at the next block or the segment's end.
    order = np.lexsort((np.concatenate([np.zeros(len(segments)), np.ones(len(address))]), edges_low, edges_home))
    edges_low, edges_home = edges_low[order], edges_home[order]
    segment_end = segments.address + segments.size_bytes
    following = np.searchsorted(address, edges_low, side="left")
    bound = np.append(address, MAX_ADDRESS)[following]
    edges_high = np.minimum(bound, segment_end[edges_home]) if len(segments) else bound
    free = edges_high > edges_low
    requested_at = lives.free_requested_event[active] <= event
    state = np.where(requested_at, STATES.index("active_pending_free"), STATES.index("active_allocated"))
    count = int(free.sum())
    blocks = {
        "segment": np.concatenate([home, edges_home[free]]),
        "address": np.concatenate([address, edges_low[free]]),
        "size_bytes": np.concatenate([size, (edges_high - edges_low)[free]]),
        "requested_bytes": np.concatenate([lives.requested_bytes[active], np.zeros(count, np.int64)]),
        "state": np.concatenate([state, np.full(count, STATES.index("inactive"))]),
        "stack": np.concatenate([lives.stack[active], np.full(count, -1)]),
    }
    by_address = np.argsort(blocks["address"], kind="stable")
    return Layout(segments, rows_of(Blocks, {name: column[by_address] for name, column in blocks.items()}))


def reserved_after(trace: Trace) -> IntArray:
    """Reserved bytes after each event, from segment events; element 0 is before the first event."""
    events = trace.events
    gain = np.isin(events.action, (SEGMENT_ALLOC, SEGMENT_MAP)).astype(np.int64)
    loss = np.isin(events.action, (SEGMENT_FREE, SEGMENT_UNMAP)).astype(np.int64)
    change = np.cumsum((gain - loss) * events.size_bytes)
    base = trace.start.reserved_bytes if trace.start is not None else trace.end.reserved_bytes - int(change[-1:].sum())
    return np.concatenate([[base], base + change])


def checked(layout: Layout, where: str) -> Layout:
    """Return the layout if its blocks fill its segments. Raises BadWindow otherwise."""
    segments, blocks = layout.segments, layout.blocks
    for name, rows in (("segments", segments), ("blocks", blocks)):
        if np.any(rows.size_bytes <= 0) or np.any(np.diff(rows.address) < 0):
            raise BadWindow(f"{where}.{name}: not sorted by address, or empty")
    if np.any(segments.address[:-1] + segments.size_bytes[:-1] > segments.address[1:]):
        raise BadWindow(f"{where}.segments: segments overlap")
    if len(blocks) and int(blocks.segment.min()) < 0:
        raise BadWindow(f"{where}.blocks: a block without a segment")
    filled = np.bincount(blocks.segment, weights=blocks.size_bytes, minlength=len(segments))
    inside = segments.address[blocks.segment] <= blocks.address
    inside &= blocks.address + blocks.size_bytes <= (segments.address + segments.size_bytes)[blocks.segment]
    if not inside.all() or np.any(filled != segments.size_bytes):
        raise BadWindow(f"{where}.blocks: blocks do not fill their segments")
    return layout


def address_as_json(address: int) -> int | str:
    """Address for the API: a number, or hexadecimal text from 2**53 on, where browsers would round it."""
    unsigned = int(address) % (1 << 64)
    return unsigned if unsigned < 1 << 53 else hex(unsigned)
