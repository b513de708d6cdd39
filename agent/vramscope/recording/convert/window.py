"""Converts the data read from PyTorch to a Window. A note says if the allocator's counters show that events are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from vramscope.memory.allocator_settings import settings_in_force, settings_text, text_in_force
from vramscope.memory.layout_columns import layout
from vramscope.memory.pools import Pools
from vramscope.memory.pytorch_snapshot import AllocatorSnapshot, ReportedSettings, SnapshotEvent, SnapshotSegment
from vramscope.memory.stack_table import Stacks
from vramscope.protocol.series import UNKNOWN
from vramscope.protocol.window import SettingsBefore, Window
from vramscope.recording.convert.events import WindowEvents
from vramscope.recording.raw_window import DeviceFacts, RawWindow

MAX_CHARACTERS: Final = 4096

COUNTED: Final = {
    "alloc": "allocation.all.allocated",
    "free_requested": "allocation.all.freed",
    "free_completed": "active.all.freed",
}
"""Action -> the counter that rises by one with it."""


def make(raw: RawWindow, facts: DeviceFacts, pause: Callable[[], None]) -> Window:
    """Make the window of one device. Empties the device's part of the trees; ``pause`` is called between slices."""
    import torch

    notes = list(raw.notes)
    device = facts.device
    pools, stacks = Pools(), Stacks()
    starting, ending = (_segments(tree, device) for tree in (raw.start, raw.end))
    for segments in (starting, ending):
        pools.learn(segments)
    entries = raw.end["device_traces"][device]
    is_whole = not raw.is_users and _cut_to_window(entries, raw.most_events)
    events = WindowEvents(pools, stacks, raw.tag, raw.marks)
    events.read(entries, pause)
    lost = None if raw.is_users else lost_events(events.counts, facts)
    notes += _notes_of_events(raw, events, pools, is_whole=is_whole, lost=lost)
    bounds = events.bounds()
    owners, owner_names = (
        ({}, []) if raw.owners is None else raw.owners.columns(device, bounds, events.freed, (starting, ending))
    )
    held, holdings, scans = raw.held.columns(events.bounds()) if raw.held is not None else ({}, [], [])
    reported_settings = _reported(raw.end)
    settings = settings_text(reported_settings)
    earlier = _settings_before(raw, bounds, notes)
    return Window(
        device=device,
        device_name=facts.name,
        device_total_bytes=facts.total_bytes,
        device_free_bytes=facts.free_bytes,
        limit_bytes=facts.limit_bytes,
        torch=str(torch.__version__),  # PyTorch's is a subclass of str
        cuda=torch.version.cuda,
        backend="native",
        settings=settings[:MAX_CHARACTERS],
        settings_in_force=settings_in_force(reported_settings, settings),
        settings_before=earlier,
        emptied=[bounds[min(mark, len(bounds) - 1)] for mark in raw.emptied],
        reason=raw.reason,
        first_step=raw.first_step,
        last_step=raw.last_step,
        start=layout(starting, pools, stacks, facts.start_counters, pause) if is_whole else None,
        end=layout(ending, pools, stacks, end_counters(facts), pause),
        events=events.columns(),
        lost_events=lost,
        pools=pools.ids,
        modules=[name[:MAX_CHARACTERS] for name in raw.modules],
        words=stacks.words,
        frames=stacks.frames,
        stacks=stacks.stacks,
        owners=owners,
        owner_names=[name[:MAX_CHARACTERS] for name in owner_names],
        held=held,
        holdings=holdings,
        scans=scans,
        notes=notes,
    )


def _notes_of_events(
    raw: RawWindow, events: WindowEvents, pools: Pools, *, is_whole: bool, lost: int | None
) -> list[str]:
    notes = [
        f"{times} events of an unknown kind were left out: {action[:100]}" for action, times in events.unknown.items()
    ]
    notes += private_notes(events.private_allocations(), pools)
    if raw.is_users:
        notes.append("the history is this process's own: it begins where it was switched on, or at its length limit")
        return notes
    if not is_whole:
        notes.append(f"limit reached: only the newest {raw.most_events} events of this window are kept")
    if lost is None:
        notes.append("the accumulated counters were reset in this window, so lost events cannot be counted")
    return notes


def _settings_before(raw: RawWindow, bounds: list[int], notes: list[str]) -> SettingsBefore | None:
    """Return the settings before a single change within the window; a note reports any change."""
    first, last = (_reported(tree) for tree in (raw.start, raw.end))
    if first == last:
        return None
    before, after = (text_in_force(one, settings_text(one)) or "the default ones" for one in (first, last))
    notes.append(f"the allocator's settings changed within this window, from {before!r} to {after!r}")
    if len(raw.settings_changed) != 1:
        notes.append("the time of the change is not known; the replay uses the latter throughout")
        return None
    text = settings_text(first)
    return SettingsBefore(
        until_event=bounds[min(raw.settings_changed[0], len(bounds) - 1)],
        settings=text[:MAX_CHARACTERS],
        settings_in_force=settings_in_force(first, text),
    )


def lost_events(event_counts: Counter[str], facts: DeviceFacts) -> int | None:
    """Return the difference between the number of events and the counters; None if these were reset in the window."""
    lost = 0
    for action, counter in COUNTED.items():
        happened = facts.end_counters[counter] - facts.start_counters[counter]
        if happened < 0:
            return None
        lost += abs(happened - event_counts[action])
    return lost


def private_notes(private: Counter[int], pools: Pools) -> list[str]:
    """Explain allocations in private pools: a capture allocates among the step's events, its replays do not."""
    notes = []
    unknown = private.pop(UNKNOWN, 0)
    if private:
        names = ", ".join(str(pools.ids[pool]) for pool in sorted(private))
        notes.append(
            f"{private.total()} allocations are in private pools {names} of captured CUDA graphs or a torch.cuda.MemPool; "
            "a graph allocates when it is captured, not when it is replayed"
        )
    if unknown:
        notes.append(
            f"{unknown} allocations were in segments that neither snapshot has, and this torch reports no pool of an event; "
            "some may belong to a captured CUDA graph"
        )
    return notes


def end_counters(facts: DeviceFacts) -> dict[str, int]:
    """Return the counters at the end, and the two peaks of the window as the clock read them."""
    return {
        **facts.end_counters,
        "allocated_bytes.all.peak": facts.peak_allocated_bytes,
        "reserved_bytes.all.peak": facts.peak_reserved_bytes,
    }


def _reported(tree: AllocatorSnapshot) -> ReportedSettings:
    return tree.get("allocator_settings", {})


def _segments(tree: AllocatorSnapshot, device: int) -> list[SnapshotSegment]:
    return [segment for segment in tree["segments"] if segment["device"] == device]


def _cut_to_window(entries: list[SnapshotEvent], most_events: int) -> bool:
    """Remove the events before the window's first snapshot. False: it was overwritten, with some events after it."""
    if len(entries) >= most_events:
        return False
    # Taking a snapshot is an event of its own: it marks the time of the layout at the start.
    for position, entry in enumerate(entries):
        if entry["action"] == "snapshot":
            del entries[: position + 1]
            return True
    return False
