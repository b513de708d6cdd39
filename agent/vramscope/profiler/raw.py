"""Data of one profile as read on the training thread: passed to the thread that makes tables of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vramscope.profiler.plan import ProfileRequest


class PhaseMark(NamedTuple):
    """A change of step or phase."""

    time_ns: int
    """Nanoseconds since 1970."""
    step: int
    """Number of the running step, from 1."""
    phase: int


@dataclass
class DeviceCounters:
    """Counters of one device at the window's begin and end, flattened by ``allocator_counters.counters_of``."""

    device: int
    name: str
    start: dict[str, int]
    end: dict[str, int] = field(default_factory=dict)

    def rise(self, name: str) -> int | None:
        """Return the increase of a counter; None if it is missing, or was reset in the window."""
        if name not in self.start or name not in self.end:
            return None
        risen = self.end[name] - self.start[name]
        return risen if risen >= 0 else None


@dataclass
class RawProfile:
    """One profile of all devices."""

    request: ProfileRequest
    first_step: int
    last_step: int
    steps: int
    """Number of complete steps."""
    start_ns: int
    """Nanoseconds since 1970."""
    counters: list[DeviceCounters]
    marks: list[PhaseMark]
    end_ns: int = 0
    profiler: Any = None
    """Closed torch.profiler.profile; dropped after it is read."""
    modules: dict[int, tuple[str, str]] | None = None
    """(name, class) by id; None: module calls could not be recorded."""
    opening_s: float = 0.0
    closing_s: float = 0.0
    step_before_s: float | None = None
    step_within_s: float | None = None
    notes: list[str] = field(default_factory=list)
