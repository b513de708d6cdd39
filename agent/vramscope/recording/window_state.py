"""A window that is being recorded: what is known of it so far, and what it has cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory.allocator_counters import counters_of
from vramscope.protocol import series
from vramscope.recording.counters import AllocatorReader
from vramscope.recording.module_tags import ModuleTags
from vramscope.recording.owners import Owners
from vramscope.recording.plan import WindowRequest
from vramscope.recording.raw_window import RawWindow

if TYPE_CHECKING:
    from vramscope.memory.peak_counters import Interval
    from vramscope.steps.records import PhaseInterval

RECORD_NS: Final = 200
RECORD_STACK_NS: Final = 1200
"""what an event costs while it is recorded (GPT-2 on torch 2.13), to reckon what a window cost"""


class OpenWindow:
    """A window that is being recorded."""

    def __init__(self, wish: WindowRequest, raw: RawWindow, metadata: str, skip: int, owners: Owners) -> None:
        self.wish = wish
        self.owners = owners
        self.raw = raw
        self.thread = get_ident()
        self.metadata = metadata
        """the user's own, to be put back"""
        self.skip = skip
        """stretches of the first step that were over before the window began"""
        self.modules: ModuleTags | None = None
        self.peaks: dict[int, tuple[int, int]] = {}
        self.events_without_stacks = 0
        """that came before stacks were switched on"""
        self.spent_ns = 0

    def timed(self, what: Callable[..., None], *args: Any) -> None:
        """Call it; what it takes is part of what the window costs."""
        began = time.perf_counter_ns()
        what(*args)
        self.spent_ns += time.perf_counter_ns() - began

    @property
    def recording_ns(self) -> int:
        """What PyTorch took for its events, reckoned, when the end has been read."""
        events = sum(len(self.raw.end["device_traces"][facts.device]) for facts in self.raw.facts)
        with_stacks = events - self.events_without_stacks if self.raw.stacks else 0
        return with_stacks * RECORD_STACK_NS + (events - with_stacks) * RECORD_NS

    def renumber(self, by: int) -> None:
        """Its steps have numbers that are higher by so many."""
        self.raw.first_step += by
        self.raw.marks[:] = [mark._replace(step=mark.step + by) for mark in self.raw.marks]

    def read_end(self, readings: AllocatorReader) -> None:
        """The allocator as it is now, and each device's counters and peaks."""
        self.raw.end = readings.snapshot()
        for facts in self.raw.facts:
            stats = readings.counters(facts.device)
            facts.end_counters = counters_of(stats)
            peak_allocated, peak_reserved = self.peaks.get(facts.device, (series.UNKNOWN, series.UNKNOWN))
            # What came after the last cut is in the counters themselves.
            facts.peak_allocated_bytes = max(peak_allocated, stats["allocated_bytes"]["all"]["peak"])
            facts.peak_reserved_bytes = max(peak_reserved, stats["reserved_bytes"]["all"]["peak"])

    def see(self, stretches: Sequence[PhaseInterval]) -> None:
        """The highest allocated and reserved of each device, by the allocator's own counters."""
        for stretch in stretches:
            for facts, cut in zip(self.raw.facts, stretch.cuts, strict=False):
                self._see(facts.device, cut)

    def _see(self, device: int, cut: Interval) -> None:
        allocated, reserved = self.peaks.get(device, (0, 0))
        self.peaks[device] = max(allocated, cut.peak_allocated_bytes), max(reserved, cut.peak_reserved_bytes)
