"""A trace: what the CUDA allocator of one device did, as numpy arrays, and what it held at any moment of it.

Made of a recorded window (:func:`from_window`) or of a snapshot that PyTorch wrote (``snapshot_reader``). The columns are
those of ``vramscope.window``, under the same names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from vramscope.window import ACTIONS, OWNER_CATEGORIES, STATES, BadWindow, Columns, Holding, SettingsBefore, Window
from vramscope.window import Layout as RecordedLayout
from vramscope.wire import PHASES
from vramscope_server.analysis.history.annotations import Annotations
from vramscope_server.analysis.history.annotations import none as no_annotations
from vramscope_server.analysis.history.block_sizes import Rounding
from vramscope_server.analysis.history.large_segments import large_segment_bytes
from vramscope_server.analysis.history.lives import (
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Lives,
    SegmentLives,
    lives_of,
    segment_lives_of,
)
from vramscope_server.analysis.history.stacks import Stacks
from vramscope_server.analysis.simulator.in_force import settings_in_force
from vramscope_server.analysis.simulator.profile import profile_of
from vramscope_server.analysis.simulator.settings import AllocatorSettings, BadSetting

Integers = npt.NDArray[Any]
Ids = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]

MAX_ADDRESS: Final = 1 << 62
"""Those from 2**63 on stand below 0 in the columns, by the same 64 bits: in their order, and nothing overflows."""
LABELS: Final = ("user_metadata", "compile_context", "forward_stack")
"""of events, where a program set them: its own words, the compiled region, the stack of the forward that a backward belongs to"""
_LIMITS: Final = {"action": len(ACTIONS) - 1, "phase": len(PHASES) - 1, "state": len(STATES) - 1}


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """One row an event, in the allocator's own order. See window.EVENTS; -1 is unknown."""

    action: Codes
    address: Bytes
    size_bytes: Bytes
    stream: Bytes
    time_ns: Bytes
    pool: Ids
    stack: Ids
    step: Ids
    phase: npt.NDArray[np.int8]
    module: Ids

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """One row a segment or mapped range, by rising address. See window.SEGMENTS."""

    address: Bytes
    size_bytes: Bytes
    stream: Bytes
    large: Codes
    expandable: Codes
    pool: Ids

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One row a block, by rising address; together they fill their segments. See window.BLOCKS."""

    segment: Ids
    address: Bytes
    size_bytes: Bytes
    requested_bytes: Bytes
    state: Codes
    stack: Ids

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """All that the allocator held of the device at one moment."""

    segments: Segments
    blocks: Blocks
    counters: dict[str, int] = field(default_factory=dict)
    """torch.cuda.memory_stats() at that moment, flattened; empty where they were not read"""

    @property
    def reserved_bytes(self) -> int:
        return int(self.segments.size_bytes.sum())

    @property
    def allocated_bytes(self) -> int:
        """In blocks that the program holds, rounding included."""
        return int(self.blocks.size_bytes[self.blocks.state == STATES.index("active_allocated")].sum())


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """One device's history from ``start`` to ``end``. Fields are those of window.Window."""

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
    """as it was recorded; None where the history begins somewhere (see ``beginning``)"""
    end: Layout
    events: Events
    lost_events: int | None
    pools: list[tuple[int, int]]
    modules: list[str]
    words: list[str]
    frames: dict[str, Ids]
    stacks: Stacks
    notes: list[str]
    owners: dict[str, Bytes] = field(default_factory=dict)
    """columns of window.OWNERS; empty where nobody looked"""
    owner_names: list[str] = field(default_factory=list)
    held: dict[str, Bytes] = field(default_factory=dict)
    """columns of window.HELD"""
    holdings: list[Holding] = field(default_factory=list)
    looks: list[int] = field(default_factory=list)

    settings_before: SettingsBefore | None = None
    """as in window.Window"""

    labels: dict[str, Ids] = field(default_factory=dict)
    """what few events have, columns of LABELS as far as there are any: positions in ``words`` or, of stacks, in ``stacks``"""
    annotations: Annotations = field(default_factory=no_annotations)

    def label(self, name: str, event: int) -> str | None:
        """What an event is labelled with, of those that are words; None where it is not."""
        column = self.labels.get(name)
        word = -1 if column is None or event < 0 else int(column[event])
        return self.words[word] if word >= 0 else None

    @cached_property
    def lives(self) -> Lives:
        """Each allocation's interval. O(events log events), once."""
        return lives_of(self.events, self.start, self.end, self.segment_lives, self.rounding)

    @cached_property
    def rounding(self) -> Rounding:
        """What of the settings decides on the sizes of blocks."""
        settings, _ = self.parsed_settings
        until, earlier = self.earlier_settings or (0, settings)
        both = (earlier, settings)
        return Rounding(
            until,
            np.array([one.divisions for one in both], np.int64),
            np.array([one.max_split_bytes for one in both], np.int64),
            np.array([one.expandable_segments for one in both]),
        )

    def settings_at(self, event: int) -> AllocatorSettings:
        """Those in force when this event came."""
        earlier = self.earlier_settings
        return earlier[1] if earlier is not None and event < earlier[0] else self.parsed_settings[0]

    @cached_property
    def parsed_settings(self) -> tuple[AllocatorSettings, str]:
        """The settings in force at the end, and a note where they are not known here: PyTorch took them, so it is another version.

        Their ``text`` gives all of them at once; ``settings`` is what was given last, which may be a part.
        """
        return self._parsed(self.settings, self.settings_in_force)

    @cached_property
    def earlier_settings(self) -> tuple[int, AllocatorSettings] | None:
        """(events that had happened when they were changed, the settings in force before); None: they were as at the end."""
        earlier = self.settings_before
        if earlier is None:
            return None
        first = slice(earlier.until_event)
        return earlier.until_event, self._parsed(earlier.settings, earlier.settings_in_force, first)[0]

    def _parsed(
        self, text: str, told: dict[str, int | float | bool | str | None], seen: slice = slice(None)
    ) -> tuple[AllocatorSettings, str]:
        """``seen``: the events that show the size of segments."""
        profile, _ = profile_of(self.torch)
        try:
            settings = settings_in_force(
                text, told, profile, lambda slots: large_segment_bytes(self.events, slots, seen)
            )
        except BadSetting as refusal:
            note = f"The recorded settings {text!r} are not known here ({refusal}); replayed as default settings."
            return replace(AllocatorSettings.parse("", profile), text=text), note
        if self.device_total_bytes is not None and self.limit_bytes is None:
            # That there is no limit is known then: a fraction that was given to a process that ran already sets none.
            settings = replace(settings, per_process_memory_fraction=1.0)
        return settings, ""

    @cached_property
    def segment_lives(self) -> SegmentLives:
        return segment_lives_of(self.events, self.start, self.end)

    @cached_property
    def beginning(self) -> Layout:
        """What was held before the first event: recorded, or rolled back from the end as far as that can be known.

        Raises BadWindow where events that contradict each other lead back to what no allocator holds: a replay from there
        would never end.
        """
        if self.start is not None:
            return self.start
        try:
            return checked(layout_at(self, -1), "the beginning")
        except BadWindow as fault:
            words = "its events contradict each other, so that what was there before the first cannot be told"
            raise BadWindow(f"{words} ({fault})") from None


def layout_at(trace: Trace, event: int) -> Layout:
    """What was held after an event, counted from 0; -1: before the first. O(events).

    Blocks and mapped ranges are exact where the trace's start is known or its blocks were seen from their allocation on;
    of what was there before a history begins, the size is that of its request, rounded.
    Raises IndexError where there is no such event.
    """
    if not -1 <= event < len(trace.events):
        raise IndexError(f"event {event}; there are events 0 to {len(trace.events) - 1}, and -1 for the beginning")
    if event == -1 and trace.start is not None:
        return trace.start
    ranges = trace.segment_lives.at(event)
    segments = _rows(Segments, ranges)
    lives = trace.lives
    held = lives.held_at(event)
    held = held[np.argsort(lives.address[held], kind="stable")]
    address, size = lives.address[held], lives.size_bytes[held]
    # Fill up with what lies between the blocks: free pieces.
    home = np.searchsorted(segments.address, address, side="right") - 1
    edges_low = np.concatenate([segments.address, address + size])
    edges_home = np.concatenate([np.arange(len(segments), dtype=np.int64), home])
    # a piece of free memory begins at a segment's start or a block's end, and goes to the next block or the segment's end
    order = np.lexsort((np.concatenate([np.zeros(len(segments)), np.ones(len(address))]), edges_low, edges_home))
    edges_low, edges_home = edges_low[order], edges_home[order]
    segment_end = segments.address + segments.size_bytes
    following = np.searchsorted(address, edges_low, side="left")
    bound = np.append(address, MAX_ADDRESS)[following]
    edges_high = np.minimum(bound, segment_end[edges_home]) if len(segments) else bound
    free = edges_high > edges_low
    requested_at = lives.requested_event[held] <= event
    state = np.where(requested_at, STATES.index("active_pending_free"), STATES.index("active_allocated"))
    count = int(free.sum())
    blocks = {
        "segment": np.concatenate([home, edges_home[free]]),
        "address": np.concatenate([address, edges_low[free]]),
        "size_bytes": np.concatenate([size, (edges_high - edges_low)[free]]),
        "requested_bytes": np.concatenate([lives.requested_bytes[held], np.zeros(count, np.int64)]),
        "state": np.concatenate([state, np.full(count, STATES.index("inactive"))]),
        "stack": np.concatenate([lives.stack[held], np.full(count, -1)]),
    }
    by_address = np.argsort(blocks["address"], kind="stable")
    return Layout(segments, _rows(Blocks, {name: column[by_address] for name, column in blocks.items()}))


def reserved_after(trace: Trace) -> Bytes:
    """Reserved bytes after each event; element 0 is before the first. From the segments that came and went."""
    events = trace.events
    gain = np.isin(events.action, (SEGMENT_ALLOC, SEGMENT_MAP)).astype(np.int64)
    loss = np.isin(events.action, (SEGMENT_FREE, SEGMENT_UNMAP)).astype(np.int64)
    change = np.cumsum((gain - loss) * events.size_bytes)
    base = trace.start.reserved_bytes if trace.start is not None else trace.end.reserved_bytes - int(change[-1:].sum())
    return np.concatenate([[base], base + change])


# ---- from a recorded window ----


def from_window(window: Window) -> Trace:
    """A recorded window as a trace. Raises BadWindow where a column says what cannot be: names it."""
    bounds = {
        **_LIMITS,
        "pool": len(window.pools) - 1,
        "module": len(window.modules) - 1,
        "stack": len(window.stacks) - 1,
        "file": len(window.words) - 1,
        "function": len(window.words) - 1,
        "event": len(window.events["action"]) // 8 if window.events else 0,
        "category": len(OWNER_CATEGORIES) - 1,
        "name": len(window.owner_names) - 1,
        "holding": len(window.holdings) - 1,
    }
    _check_looks(window, bounds["event"])
    frames = {name: _column("frames", name, data, bounds) for name, data in window.frames.items()}
    deepest = len(frames["line"]) if frames else 0
    none_of = BadWindow(f"stacks: a frame that is none of the {deepest}")
    try:
        stacks = Stacks.of(window.stacks)
    except OverflowError:
        raise none_of from None
    if len(stacks.flat) and not 0 <= int(stacks.flat.min()) <= int(stacks.flat.max()) < deepest:
        raise none_of
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
        looks=window.looks,
        settings_before=window.settings_before,
    )  # fmt: skip


def _check_looks(window: Window, events: int) -> None:
    if any(not 0 <= event <= events for event in window.looks):
        raise BadWindow(f"looks: an event that is none of the {events}")
    if window.settings_before is not None and window.settings_before.until_event > events:
        raise BadWindow(f"settings_before: an event that is none of the {events}")
    for at, holding in enumerate(window.holdings):
        if len(holding.counted_bytes) != len(window.looks):
            raise BadWindow(
                f"holdings.{at}.counted_bytes: {len(holding.counted_bytes)} of them for {len(window.looks)} looks"
            )


def _layout(where: str, layout: RecordedLayout, bounds: dict[str, int]) -> Layout:
    segments = _table(Segments, f"{where}.segments", layout.segments, bounds)
    bounds = {**bounds, "segment": len(segments) - 1}
    blocks = _table(Blocks, f"{where}.blocks", layout.blocks, bounds)
    made = Layout(segments, blocks, dict(layout.counters))
    return checked(made, where)


def checked(layout: Layout, where: str) -> Layout:
    """The same layout, if its blocks fill its segments. Raises BadWindow else."""
    segments, blocks = layout.segments, layout.blocks
    for name, rows in (("segments", segments), ("blocks", blocks)):
        if np.any(rows.size_bytes <= 0) or np.any(np.diff(rows.address) < 0):
            raise BadWindow(f"{where}.{name}: not in the order of their addresses, or of no size")
    if np.any(segments.address[:-1] + segments.size_bytes[:-1] > segments.address[1:]):
        raise BadWindow(f"{where}.segments: they overlap")
    if len(blocks) and int(blocks.segment.min()) < 0:
        raise BadWindow(f"{where}.blocks: a block of no segment")
    filled = np.bincount(blocks.segment, weights=blocks.size_bytes, minlength=len(segments))
    inside = segments.address[blocks.segment] <= blocks.address
    inside &= blocks.address + blocks.size_bytes <= (segments.address + segments.size_bytes)[blocks.segment]
    if not inside.all() or np.any(filled != segments.size_bytes):
        raise BadWindow(f"{where}.blocks: they do not fill their segments")
    return layout


def _column(where: str, name: str, data: bytes, bounds: dict[str, int]) -> Bytes:
    column = np.frombuffer(data, "<i8")
    highest = bounds.get(name, MAX_ADDRESS)
    if len(column) and (int(column.min()) < -1 or int(column.max()) > highest):
        if name == "stream":  # a handle is what the driver likes
            return column
        raise BadWindow(f"{where}.{name}: {int(column.min())} to {int(column.max())}, where -1 to {highest} can be")
    if len(column) and name in ("action", "state", "address", "size_bytes") and int(column.min()) < 0:
        raise BadWindow(f"{where}.{name}: {int(column.min())}, where it must be known")
    return column


Rows = TypeVar("Rows", Events, Segments, Blocks)


def _table(kind: type[Rows], where: str, columns: Columns, bounds: dict[str, int]) -> Rows:
    return _rows(kind, {one.name: _column(where, one.name, columns.get(one.name, b""), bounds) for one in fields(kind)})


_DTYPES: Final[dict[str, Any]] = {
    "action": np.uint8, "state": np.uint8, "large": np.uint8, "expandable": np.uint8, "phase": np.int8, "pool": np.int32,
    "stack": np.int32, "step": np.int32, "module": np.int32, "segment": np.int32,
}  # fmt: skip


def _rows(kind: type[Rows], columns: dict[str, Integers]) -> Rows:
    return kind(**{name: column.astype(_DTYPES.get(name, np.int64)) for name, column in columns.items()})


rows_of = _rows


def address_told(address: int) -> int | str:
    """An address as the API tells it: a number, or from 2**53 on, where browsers would round it, text in hexadecimal digits."""
    unsigned = int(address) % (1 << 64)
    return unsigned if unsigned < 1 << 53 else hex(unsigned)
