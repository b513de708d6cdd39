"""What the user's own memory history holds when memory has run out, as a window that begins somewhere. It stays as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from vramscope.memory import unusable
from vramscope.process.identity import random_id
from vramscope.protocol import series
from vramscope.recording.counters import AllocatorReader
from vramscope.recording.raw_window import DeviceFacts, Mark, RawWindow

MOST_EVENTS: Final = 600_000
"""with more it may take longer than a second to read"""
REASON: Final = "this process's own memory history, when memory ran out"
TOO_MUCH: Final = "this process records its own memory history: too much may be in it to be read within a second"
NATIVE: Final = (
    "this process records its own memory history with the frames of C++, which may take minutes to read: with stacks='python' it "
    "would be in this record"
)


def ring_of(readings: AllocatorReader, devices: Sequence[int], step: int, notes: list[str]) -> RawWindow | None:
    """None where it is left alone; a note says why. 1 µs an event.

    step   number of the one that runs; of the events it is not known in which step they were
    """
    facts = [readings.facts(device) for device in devices]
    if sum(map(_most_events_of, facts)) > MOST_EVENTS:
        notes.append(TOO_MUCH)
        return None
    if _has_native_frames(unusable.layout() or []):
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
        most_events=MOST_EVENTS,
        tag="\n",  # (no event has it: what the user has tagged is theirs)
        start={"segments": []},
        end=readings.snapshot(),
        facts=facts,
        marks=[Mark(0, series.UNKNOWN, series.UNKNOWN)],
        modules=[],
        notes=[],
        stacks=True,
        is_the_users=True,
        idents={one.device: random_id() for one in facts},
    )


def _most_events_of(facts: DeviceFacts) -> int:
    """How many there have been since the process began, at most."""
    counters = facts.start_counters
    return counters["allocation.all.allocated"] + 2 * counters["allocation.all.freed"]


def _has_native_frames(segments: list[dict[str, Any]]) -> bool:
    """By the first block that has any frames. (The layout of the record was read before, and with it what these take to read.)"""
    stacks = (block["frames"] for segment in segments for block in segment["blocks"] if block.get("frames"))
    return any(not str(frame["filename"]).endswith((".py", ">")) for frame in next(stacks, ()))
