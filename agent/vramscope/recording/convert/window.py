"""From what was read of PyTorch to a Window: complete as far as the allocator's own counters agree, and saying so where not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from vramscope.memory.allocator_settings import settings_in_force, settings_text, text_in_force
from vramscope.memory.layout_columns import layout
from vramscope.memory.pools import Pools
from vramscope.memory.stack_table import Stacks
from vramscope.protocol.series import UNKNOWN
from vramscope.protocol.window import SettingsBefore, Window
from vramscope.recording.convert.events import Entries, WindowEvents
from vramscope.recording.raw_window import DeviceFacts, RawWindow, Tree

MOST_TEXT: Final = 4096

COUNTED: Final = {
    "alloc": "allocation.all.allocated",
    "free_requested": "allocation.all.freed",
    "free_completed": "active.all.freed",
}
"""action -> the counter that rises by one with it"""


def make(raw: RawWindow, facts: DeviceFacts, pause: Callable[[], None]) -> Window:
    """The window of one device. Empties the device's part of the trees; ``pause`` lets the training on between slices."""
    import torch

    notes = list(raw.notes)
    device = facts.device
    pools, stacks = Pools(), Stacks()
    starting, ending = (_segments(tree, device) for tree in (raw.start, raw.end))
    for segments in (starting, ending):
        pools.learn(segments)
    entries: Entries = raw.end["device_traces"][device]
    is_whole = not raw.is_the_users and _cut_to_window(entries, raw.most_events)
    events = WindowEvents(pools, stacks, raw.tag, raw.marks)
    events.read(entries, pause)
    for action, times in events.unknown.items():
        notes.append(f"{times} events of a kind that is not known here were left out: {action[:100]}")
    notes += private_notes(events.private_allocations(), pools)
    lost = None if raw.is_the_users else lost_events(events.counts, facts)
    if raw.is_the_users:
        notes.append(
            "the history is this process's own: it begins where that was switched on, or as far back as it reaches"
        )
    elif not is_whole:
        notes.append(f"a bound was met: of this window the newest {raw.most_events} events alone are here")
    if lost is None and not raw.is_the_users:
        notes.append("the accumulated counters were reset in this window, so that lost events cannot be told")
    bounds = events.bounds()
    owners, owner_names = (
        ({}, []) if raw.owners is None else raw.owners.columns(device, bounds, events.freed, (starting, ending))
    )
    held, holdings, scans = raw.held.columns(events.bounds()) if raw.held is not None else ({}, [], [])
    told = raw.end.get("allocator_settings", {})
    settings = settings_text(told)
    began, changed, earlier = raw.start.get("allocator_settings", {}), raw.settings_changed, None
    if began != told:
        before, after = (text_in_force(one, settings_text(one)) or "the default ones" for one in (began, told))
        notes.append(f"the allocator's settings were changed within this window, from {before!r} to {after!r}")
        if len(changed) == 1:
            earlier = SettingsBefore(
                until_event=bounds[min(changed[0], len(bounds) - 1)],
                settings=settings_text(began)[:MOST_TEXT],
                settings_in_force=settings_in_force(began, settings_text(began)),
            )
        else:
            notes.append("when is not known, so that it is replayed as if the latter had held throughout")
    return Window(
        device=device,
        device_name=facts.name,
        device_total_bytes=facts.total_bytes,
        device_free_bytes=facts.free_bytes,
        limit_bytes=facts.limit_bytes,
        torch=str(torch.__version__),  # PyTorch's is a subclass of str
        cuda=torch.version.cuda,
        backend="native",
        settings=settings[:MOST_TEXT],
        settings_in_force=settings_in_force(told, settings),
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
        modules=[name[:MOST_TEXT] for name in raw.modules],
        words=stacks.words,
        frames=stacks.frames,
        stacks=stacks.stacks,
        owners=owners,
        owner_names=[name[:MOST_TEXT] for name in owner_names],
        held=held,
        holdings=holdings,
        scans=scans,
        notes=notes,
    )


def lost_events(seen: Counter[str], facts: DeviceFacts) -> int | None:
    """By how many the events differ from what the counters say; None where these were reset meanwhile."""
    lost = 0
    for action, counter in COUNTED.items():
        happened = facts.end_counters[counter] - facts.start_counters[counter]
        if happened < 0:
            return None
        lost += abs(happened - seen[action])
    return lost


def private_notes(private: Counter[int], pools: Pools) -> list[str]:
    """What a capture allocates stands among the step's own events: said, because its replays are in none."""
    notes = []
    unknown = private.pop(UNKNOWN, 0)
    if private:
        names = ", ".join(str(pools.ids[pool]) for pool in sorted(private))
        notes.append(
            f"{private.total()} allocations are in private pools {names}, of captured CUDA graphs or a torch.cuda.MemPool: "
            "a graph allocates when it is captured, and not when it is replayed"
        )
    if unknown:
        notes.append(
            f"{unknown} allocations were in segments that neither snapshot has, and this torch does not tell an event's pool: "
            "some may be a captured CUDA graph's"
        )
    return notes


def end_counters(facts: DeviceFacts) -> dict[str, int]:
    """The counters at the end, and the two peaks of the window: the allocator's own, as the clock cut them."""
    return {
        **facts.end_counters,
        "allocated_bytes.all.peak": facts.peak_allocated_bytes,
        "reserved_bytes.all.peak": facts.peak_reserved_bytes,
    }


def _segments(tree: Tree, device: int) -> list[Tree]:
    return [segment for segment in tree["segments"] if segment["device"] == device]


def _cut_to_window(entries: Entries, most_events: int) -> bool:
    """Leave the events after the snapshot that the window began with. False: it has been overwritten, and some after it."""
    if len(entries) >= most_events:
        return False
    # Taking a snapshot is an event of its own: it stands where the layout at the start was read.
    for place, entry in enumerate(entries):
        if entry["action"] == "snapshot":
            del entries[: place + 1]
            return True
    return False
