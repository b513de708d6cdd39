"""What one profile left, as it was read on the training thread: handed on to the thread that makes tables of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vramscope.profiler.plan import ProfileRequest


class PhaseMark(NamedTuple):
    """A moment at which step or phase changed."""

    time_ns: int
    """since 1970"""
    step: int
    """number of the step that runs, from 1"""
    phase: int


@dataclass
class DeviceCounters:
    """The allocator of one device at the window's beginning and end, as ``trace.raw.counters_of`` flattens it."""

    device: int
    name: str
    start: dict[str, int]
    end: dict[str, int] = field(default_factory=dict)

    def rise(self, name: str) -> int | None:
        """By how much a counter rose; None where there is no such, or somebody reset it meanwhile."""
        if name not in self.start or name not in self.end:
            return None
        risen = self.end[name] - self.start[name]
        return risen if risen >= 0 else None


@dataclass
class RawProfile:
    """One profile of all devices."""

    wish: ProfileRequest
    first_step: int
    last_step: int
    steps: int
    """in full"""
    start_ns: int
    """since 1970"""
    counters: list[DeviceCounters]
    marks: list[PhaseMark]
    end_ns: int = 0
    profiler: Any = None
    """torch.profiler.profile, closed; let go when it is read"""
    modules: dict[int, tuple[str, str]] | None = None
    """(name, class) by id(); None: no hooks were possible"""
    opening_s: float = 0.0
    closing_s: float = 0.0
    step_before_s: float | None = None
    step_within_s: float | None = None
    notes: list[str] = field(default_factory=list)
