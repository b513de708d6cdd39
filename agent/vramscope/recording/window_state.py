"""State of a window that is being recorded, and its cost so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

from vramscope.memory.allocator_counters import counters_of
from vramscope.protocol import series
from vramscope.recording.address_owners import Owners
from vramscope.recording.counters import AllocatorReader
from vramscope.recording.module_tags import ModuleTags
from vramscope.recording.plan import WindowRequest
from vramscope.recording.raw_window import RawWindow
from vramscope.steps.phase import DATA, FORWARD, OTHER

if TYPE_CHECKING:
    from vramscope.memory.peak_counters import Interval
    from vramscope.steps.records import PhaseInterval

RECORD_NS: Final = 1200
"""Cost of one recorded event with its stack (GPT-2 on torch 2.13), to estimate a window's cost."""
NO_WORK: Final = (OTHER, DATA)
"""Phases in which a training does not compute."""


class DisableOnError:
    """Context in which an error ends recording for good and restores everything. (A generator would take five times as
    long.)"""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._failed()


class OpenWindow:
    """A window that is being recorded."""

    def __init__(self, request: WindowRequest, raw: RawWindow, metadata: str, skip: int, owners: Owners) -> None:
        self.request = request
        self.owners = owners
        self.raw = raw
        self.thread = get_ident()
        self.metadata = metadata
        """The user's own metadata, to be restored."""
        self.skip = skip
        """Number of intervals of the first step that ended before the window began."""
        self.modules: ModuleTags | None = None
        self.peaks: dict[int, tuple[int, int]] = {}
        self.spent_ns = 0

    @property
    def has_work(self) -> bool:
        """True if a phase in the window computes."""
        return any(mark.phase not in NO_WORK for mark in self.raw.marks)

    def name_forward(self) -> None:
        """Correct the last mark's phase: a forward begins there, of a model that is not known yet."""
        if self.raw.marks and self.raw.marks[-1].phase == OTHER:
            self.raw.marks[-1] = self.raw.marks[-1]._replace(phase=FORWARD)

    def timed(self, what: Callable[..., None], *args: Any) -> None:
        """Call a function and add its time to the window's cost."""
        start_ns = time.perf_counter_ns()
        what(*args)
        self.spent_ns += time.perf_counter_ns() - start_ns

    @property
    def recording_ns(self) -> int:
        """Estimated time that PyTorch took for the window's events, once the end has been read."""
        events = sum(len(self.raw.end["device_traces"][facts.device]) for facts in self.raw.facts)
        return events * RECORD_NS

    def renumber(self, by: int) -> None:
        """Raise the numbers of the window's steps."""
        self.raw.first_step += by
        self.raw.marks[:] = [mark._replace(step=mark.step + by) for mark in self.raw.marks]

    def read_end(self, readings: AllocatorReader) -> None:
        """Read the allocator, and each device's counters and peaks."""
        self.raw.end = readings.snapshot()
        for facts in self.raw.facts:
            stats = readings.counters(facts.device)
            facts.end_counters = counters_of(stats)
            peak_allocated, peak_reserved = self.peaks.get(facts.device, (series.UNKNOWN, series.UNKNOWN))
            # The counters contain what came after the last reading.
            facts.peak_allocated_bytes = max(peak_allocated, stats["allocated_bytes"]["all"]["peak"])
            facts.peak_reserved_bytes = max(peak_reserved, stats["reserved_bytes"]["all"]["peak"])

    def add_peaks(self, intervals: Sequence[PhaseInterval]) -> None:
        """Update the highest allocated and reserved bytes of each device from the allocator's own counters."""
        for interval in intervals:
            for facts, cut in zip(self.raw.facts, interval.cuts, strict=False):
                self._add_peak(facts.device, cut)

    def _add_peak(self, device: int, cut: Interval) -> None:
        allocated, reserved = self.peaks.get(device, (0, 0))
        self.peaks[device] = max(allocated, cut.peak_allocated_bytes), max(reserved, cut.peak_reserved_bytes)


def highest_peaks(intervals: Sequence[PhaseInterval]) -> tuple[int, int]:
    """Return the highest allocated and reserved bytes of any device; -1 without a device."""
    allocated = reserved = -1
    for interval in intervals:
        for cut in interval.cuts:
            allocated = max(allocated, cut.peak_allocated_bytes)
            reserved = max(reserved, cut.peak_reserved_bytes)
    return allocated, reserved
