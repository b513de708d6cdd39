"""What the server promises of a fix by replaying a recorded step, against the same step of the mended loop."""

from __future__ import annotations

import dataclasses
from typing import Any

from child import windows_of
from promise import SHARE, SMALL_BYTES, Promise, side_by_side

from vramscope.protocol import messages
from vramscope_server.analysis.leaks.fix_effect import LeakEffect, leak_effect
from vramscope_server.analysis.leaks.leaked_allocations import CannotTell
from vramscope_server.analysis.trace.from_window import from_window

SEGMENT_BYTES = 2 << 20
"""Smallest size that is requested from cudaMalloc."""


@dataclasses.dataclass
class Replayed:
    """One step: what was promised of it, and what came."""

    effect: LeakEffect | None
    reason: str
    """Reason why there is no effect."""
    came_saved_bytes: int = 0
    """Recorded peak of allocated bytes minus the peak of the fixed loop."""
    came_reserved_bytes: int = 0
    """Peak of reserved bytes of the fixed loop."""
    item_bytes: int = 0
    """Tolerance in bytes: one item more or less is no miss."""

    @property
    def allocated(self) -> Promise:
        """By how much the peak of allocated bytes falls."""
        assert self.effect is not None
        promised, came = self.effect.saved_bytes, self.came_saved_bytes
        return Promise(promised, came, max(SMALL_BYTES, SHARE * max(promised, came), self.item_bytes))

    @property
    def is_reserved_kept(self) -> bool:
        """What was cached before is not known: so the smallest segment more or less is no miss."""
        assert self.effect is not None
        low, high = self.effect.peak_reserved_after_band
        return low - SEGMENT_BYTES <= self.came_reserved_bytes <= high + SEGMENT_BYTES

    def __str__(self) -> str:
        """Two cells: what falls, promised / came; reserved bytes, recorded -> promised / came."""
        if self.effect is None:
            return f"{self.reason} | "
        recorded = self.effect.peak_reserved_bytes / SEGMENT_BYTES * 2
        note = "" if self.is_reserved_kept else " **outside**"
        reserved = side_by_side(self.effect.peak_reserved_after_bytes, self.came_reserved_bytes)
        return f"{self.allocated} | {recorded:.0f} -> {reserved}{note}"


def replayed(leak: messages.Leak, answer: dict[str, Any], mended: Any, item_bytes: int) -> Replayed:
    """Of the newest window that can tell.

    answer   of a child that watched the broken loop, with windows
    mended   readings of the mended one; both count the steps of all optimizers
    """
    reason = "no window was recorded"
    looked_at = list(answer["looked_at"])
    for window in reversed(windows_of(answer)):
        steps, looked_at = (
            looked_at[-len(window.scans) :] if window.scans else [],
            looked_at[: -len(window.scans) or None],
        )
        try:
            effect = leak_effect(from_window(window), leak.kind, leak.name, leak.file, leak.line)
        except CannotTell as cannot:
            reason = str(cannot)
            continue
        begin, end = (steps[window.scans.index(event)] for event in (effect.begin_event, effect.end_event))
        same = [one for one in mended if begin < one["steps"] <= end]
        came = answer["before_bytes"] + max(one["peak_bytes"] for one in same)
        reserved = max(one["reserved_bytes"] for one in same)
        return Replayed(effect, "", effect.peak_allocated_bytes - came, reserved, item_bytes)
    return Replayed(None, reason)
