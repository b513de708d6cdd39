"""Input and output of advice rules: facts about a recorded step, and advice.

A rule is a file with ``advise(facts) -> Advice | None``. It promises bytes only if it can calculate them: it changes the
lifetimes of allocations as its remedy would, and compares the step's peak before and after (``StepFacts.peak_after``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypedDict

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.ownership.allocation_owners import Ownership, name_of, ownership_of
from vramscope_server.analysis.ownership.amounts import allocated_after, allocated_at, known_peak_event
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.ownership.phases import PhaseIntervals, phase_intervals_of
from vramscope_server.analysis.ownership.stack_categories import with_phases
from vramscope_server.analysis.ownership.stack_frames import lives_with, stacks_through
from vramscope_server.analysis.timeline.source_lines import SourceLines, frame_of, sites_of
from vramscope_server.analysis.trace.trace import Trace

if TYPE_CHECKING:
    from vramscope_server.analysis.whatif.sweep import Sweep

Flags = npt.NDArray[np.bool_]

WORTH_FRACTION: Final = 0.02
"""Minimum saving as a share of the peak."""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """One or two sentences, with the number behind them."""

    rule: str
    sentence: str
    saves_bytes: int | None
    """Reduction of the step's peak of allocated bytes, or of what ``evidence["of"]`` names: the run's peak, or the smallest
    device on which the run fits. None if unknown."""
    seconds: float | None = None
    """Time saved per step; negative if the step gets longer; None if unknown."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """Inputs of the condition and the calculation."""
    source: str
    """Source of the idea: an address or a reason."""
    file: str | None = None
    line: int | None = None
    module: str | None = None


class ReportedTechnique(TypedDict):
    """A technique as in ``messages.Technique``, as plain values."""

    kind: str
    chip: str
    declared: str | None
    observed: str | None
    detail: dict[str, Any]


@dataclass(frozen=True, eq=False)
class StepFacts:
    """A trace with events, and other facts about its run."""

    recorded: Trace
    profile: Any = None
    """The run's torch.profiler tables; None if there are none."""
    techniques: Sequence[ReportedTechnique] = ()
    """Techniques of the run, as its agent reported them."""
    run_peak_bytes: int | None = None
    """Highest allocated bytes of all steps, recorded or not; None if unknown."""
    phase_peaks_bytes: Mapping[str, int] = field(default_factory=dict)
    """Highest allocated bytes per phase, as far as phases are known."""
    sweep: Sweep | None = None
    """The recording under other allocator settings, in view of its run; None if it was not replayed."""

    @cached_property
    def trace(self) -> Trace:
        """The recorded trace. The steps and phases of a snapshot come from its stacks."""
        return with_phases(self.recorded)

    @cached_property
    def categories(self) -> npt.NDArray[np.int8]:
        return categories_of(self.recorded)

    @cached_property
    def ownership(self) -> Ownership:
        return ownership_of(self.trace)

    @cached_property
    def phase_intervals(self) -> PhaseIntervals:
        return phase_intervals_of(self.trace)

    @cached_property
    def sites(self) -> SourceLines:
        return sites_of(self.trace)

    @cached_property
    def allocated(self) -> IntArray:
        """Allocated bytes after each event; element 0 is before the first event."""
        return allocated_after(self.trace)

    @cached_property
    def peak_event(self) -> int:
        """Event with the highest allocated bytes. Of similar steps, the last one with modules."""
        return known_peak_event(self.trace)

    @cached_property
    def peak_bytes(self) -> int:
        return int(self.allocated[self.peak_event + 1])

    @cached_property
    def at_peak(self) -> IntArray:
        """Positions of the allocations that exist at the peak."""
        return allocated_at(self.trace, self.peak_event)

    @cached_property
    def step(self) -> int:
        """Number of the peak's step, from 1."""
        return int(self.trace.events.step[max(self.peak_event, 0)])

    @cached_property
    def span(self) -> tuple[int, int]:
        """First and last event of the peak's step."""
        inside = np.flatnonzero(self.trace.events.step == self.step)
        return int(inside[0]), int(inside[-1])

    @property
    def peak_phase(self) -> str | None:
        code = int(self.trace.events.phase[max(self.peak_event, 0)])
        return PHASES[code] if code >= 0 else None

    def is_of(self, *names: str) -> Flags:
        """Whether each allocation is of one of these categories."""
        chosen: Flags = np.isin(self.categories, [CATEGORIES.index(name) for name in names])
        return chosen

    def allocated_in(self, phase: str) -> Flags:
        """Whether each allocation was made in this phase."""
        intervals = self.phase_intervals
        made: Flags = (intervals.born >= 0) & (intervals.phase[np.maximum(intervals.born, 0)] == PHASES.index(phase))
        return made

    def in_step(self) -> Flags:
        """Whether each allocation was made in the peak's step."""
        first, last = self.span
        made = self.trace.lives.alloc_event
        return (made >= first) & (made <= last)

    def bytes_of(self, lives: IntArray | Flags) -> int:
        return int(self.trace.lives.size_bytes[lives].sum())

    def owner(self, life: int) -> str | None:
        return name_of(self.trace, self.ownership, life)

    def module_of(self, life: int) -> str | None:
        """Innermost module whose forward made an allocation; None if modules were not recorded."""
        event = int(self.trace.lives.alloc_event[life])
        at = int(self.trace.events.module[event]) if event >= 0 else -1
        return self.trace.modules[at] if at >= 0 else None

    def goes_through(self, functions: frozenset[str]) -> Flags:
        """Whether each allocation's stack has a function with one of these names. False without stacks."""
        return lives_with(self.trace, stacks_through(self.trace, functions=functions))

    def line_of(self, life: int) -> tuple[str | None, int | None]:
        """File and line of the innermost user frame of an allocation; None if unknown."""
        stack = int(self.sites.stack[life])
        frame = int(self.sites.frame[stack]) if stack >= 0 else -1
        if frame < 0 or not self.sites.own[frame]:
            return None, None
        source = frame_of(self.trace, frame)
        return source.file, source.line

    def peak_after(self, changes: IntArray) -> int:
        """Peak of the peak's step with these changes of allocated bytes after each event.

        Element 0 is the change before the first event.
        """
        first, last = self.span
        return int((self.allocated + changes)[first + 1 : last + 2].max())

    def without(self, lives: Flags, begin: IntArray | None = None, end: IntArray | None = None) -> IntArray:
        """Change of allocated bytes without these allocations, or without them from event ``begin`` to ``end`` of each."""
        return self.lowered(np.where(lives, self.trace.lives.size_bytes, 0), begin, end)

    def lowered(self, by_bytes: IntArray, begin: IntArray | None = None, end: IntArray | None = None) -> IntArray:
        """Change of allocated bytes with smaller allocations. ``begin`` and ``end`` have no entry for allocations with 0."""
        of, count = self.trace.lives, len(self.trace.events)
        rows = np.flatnonzero(by_bytes)
        start = of.alloc_event[rows] if begin is None else begin
        stop = of.free_requested_event[rows] if end is None else end
        keep = stop > start
        change = np.zeros(count + 2, np.int64)
        size = by_bytes[rows]
        np.subtract.at(change, (start + 1)[keep], size[keep])
        np.add.at(change, (stop + 1)[keep], size[keep])
        return np.cumsum(change[: count + 1])
