"""Reads the user's own memory history at an out-of-memory error, as a window with an unknown begin. The history does not
change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from vramscope.memory import unusable
from vramscope.memory.pytorch_snapshot import SnapshotSegment
from vramscope.process.identity import random_id
from vramscope.protocol import series
from vramscope.recording.counters import AllocatorReader
from vramscope.recording.raw_window import DeviceFacts, Mark, RawWindow

MAX_EVENTS: Final = 600_000
"""Maximum number of events: with more, reading may take longer than a second."""
REASON: Final = "this process's own memory history at the out-of-memory error"
TOO_LONG: Final = "this process records its own memory history: it may be too long to read within a second"
NATIVE: Final = (
    "this process records its own memory history with C++ frames, which may take minutes to read; use stacks='python' to "
    "include it"
)


def window_of_history(
    readings: AllocatorReader, devices: Sequence[int], step: int, notes: list[str]
) -> RawWindow | None:
    """Read the user's history. None if it cannot be read; a note says why. 1 µs an event.

    step   number of the running step; the steps of the events are not known
    """
    facts = [readings.facts(device) for device in devices]
    if sum(map(_max_events_of, facts)) > MAX_EVENTS:
        notes.append(TOO_LONG)
        return None
    if _has_native_frames(unusable.layout(marks_history=True) or []):
        notes.append(NATIVE)
        return None
    for one in facts:
        one.end_counters = one.start_counters
        one.peak_allocated_bytes = one.start_counters["allocated_bytes.all.current"]
        one.peak_reserved_bytes = one.start_counters["reserved_bytes.all.current"]
    return RawWindow(
        reason=REASON,
        first_step=step,
        last_step=step,
        most_events=MAX_EVENTS,
        tag="\n",  # no event has this tag, because tags are the user's own
        start={"segments": []},
        end=readings.snapshot(),
        facts=facts,
        marks=[Mark(0, series.UNKNOWN, series.UNKNOWN)],
        modules=[],
        notes=[],
        is_users=True,
        idents={one.device: random_id() for one in facts},
    )


def _max_events_of(facts: DeviceFacts) -> int:
    """Return the maximum number of events since the process began."""
    counters = facts.start_counters
    return counters["allocation.all.allocated"] + 2 * counters["allocation.all.freed"]


def _has_native_frames(segments: Iterable[SnapshotSegment]) -> bool:
    """Check the first block that has frames. (The record's layout was read before, and with it these frames.)"""
    stacks = (block["frames"] for segment in segments for block in segment["blocks"] if block.get("frames"))
    return any(not str(frame["filename"]).endswith((".py", ">")) for frame in next(stacks, ()))
