"""What a rule may ask about a recorded step, and what it may say.

A rule is a file with ``advise(facts) -> Advice | None``. It promises bytes only where it can reckon them: it changes the lives
of the trace as its remedy would, and takes the highest allocated bytes of the step before and after (``StepFacts.peak_after``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.ownership.amounts import allocated_after, allocated_at, known_peak_event
from vramscope_server.analysis.ownership.categories import CATEGORIES, categories_of
from vramscope_server.analysis.ownership.owners import Ownership, name_of, ownership_of
from vramscope_server.analysis.ownership.phases import PhaseIntervals, phase_intervals_of
from vramscope_server.analysis.ownership.stack_categories import with_phases
from vramscope_server.analysis.ownership.stack_frames import lives_with, stacks_through
from vramscope_server.analysis.timeline.source_lines import Sites, frame_of, sites_of
from vramscope_server.analysis.trace.trace import Trace

Whole = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORTH_FRACTION: Final = 0.02
"""of the peak: less is not worth a sentence"""


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A sentence or two, with its number."""

    rule: str
    sentence: str
    saves_bytes: int | None
    """by which the step's peak of allocated bytes falls (of reserved, or the run's peak, where ``evidence["of"]`` says so); None:
    not known"""
    seconds: float | None = None
    """that a step gets shorter; below 0: longer; None: not known"""
    evidence: dict[str, Any] = field(default_factory=dict)
    """what the condition saw and the arithmetic took"""
    source: str
    """where the idea is from, an address or a word"""
    file: str | None = None
    line: int | None = None
    module: str | None = None


@dataclass(frozen=True, eq=False)
class StepFacts:
    """A trace that has events, and what else is known of its run."""

    recorded: Trace
    profile: Any = None
    """the run's tables of torch.profiler; None: there are none"""
    techniques: Sequence[dict[str, Any]] = ()
    """as ``runs.techniques`` tells them"""
    run_peak_bytes: int | None = None
    """the highest allocated of all its steps, recorded or not; None: not known"""
    phase_peaks_bytes: Mapping[str, int] = field(default_factory=dict)
    """and in each phase, as far as phases were read"""

    @cached_property
    def trace(self) -> Trace:
        """What was recorded; of a snapshot with steps and phases as its stacks tell them."""
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
    def sites(self) -> Sites:
        return sites_of(self.trace)

    @cached_property
    def allocated(self) -> Whole:
        """After each event; element 0 is before the first."""
        return allocated_after(self.trace)

    @cached_property
    def peak_event(self) -> int:
        """Where most is allocated; of steps that are alike the last that knows modules."""
        return known_peak_event(self.trace)

    @cached_property
    def peak_bytes(self) -> int:
        return int(self.allocated[self.peak_event + 1])

    @cached_property
    def at_peak(self) -> Whole:
        """Positions of the lives that are held then."""
        return allocated_at(self.trace, self.peak_event)

    @cached_property
    def step(self) -> int:
        """The number of the step that the peak is in, from 1."""
        return int(self.trace.events.step[max(self.peak_event, 0)])

    @cached_property
    def span(self) -> tuple[int, int]:
        """(first, last) event of the peak's step."""
        inside = np.flatnonzero(self.trace.events.step == self.step)
        return int(inside[0]), int(inside[-1])

    @property
    def peak_phase(self) -> str | None:
        code = int(self.trace.events.phase[max(self.peak_event, 0)])
        return PHASES[code] if code >= 0 else None

    def is_of(self, *names: str) -> Flags:
        """The lives of these categories."""
        chosen: Flags = np.isin(self.categories, [CATEGORIES.index(name) for name in names])
        return chosen

    def born_in(self, phase: str) -> Flags:
        """The lives that were made in this phase."""
        intervals = self.phase_intervals
        born: Flags = (intervals.born >= 0) & (intervals.phase[np.maximum(intervals.born, 0)] == PHASES.index(phase))
        return born

    def in_step(self) -> Flags:
        """The lives that were made in the peak's step."""
        first, last = self.span
        made = self.trace.lives.alloc_event
        return (made >= first) & (made <= last)

    def bytes_of(self, lives: Whole | Flags) -> int:
        return int(self.trace.lives.size_bytes[lives].sum())

    def owner(self, life: int) -> str | None:
        return name_of(self.trace, self.ownership, life)

    def module_of(self, life: int) -> str | None:
        """The innermost module whose forward made it, where modules were recorded."""
        event = int(self.trace.lives.alloc_event[life])
        at = int(self.trace.events.module[event]) if event >= 0 else -1
        return self.trace.modules[at] if at >= 0 else None

    def goes_through(self, functions: frozenset[str]) -> Flags:
        """The lives that were asked for within a function of one of these names, where stacks were recorded."""
        return lives_with(self.trace, stacks_through(self.trace, functions=functions))

    def line_of(self, life: int) -> tuple[str | None, int | None]:
        """(file, line) of the innermost frame that the user wrote; None where no stack tells it."""
        stack = int(self.sites.stack[life])
        frame = int(self.sites.frame[stack]) if stack >= 0 else -1
        if frame < 0 or not self.sites.own[frame]:
            return None, None
        told = frame_of(self.trace, frame)
        return told.file, told.line

    def peak_after(self, changes: Whole) -> int:
        """The highest allocated bytes of the peak's step if they changed by so much after each event (element 0: before the
        first)."""
        first, last = self.span
        return int((self.allocated + changes)[first + 1 : last + 2].max())

    def without(self, lives: Flags, begin: Whole | None = None, end: Whole | None = None) -> Whole:
        """What allocated bytes change by if these lives were not there, or not from event ``begin`` up to ``end`` of each."""
        return self.lowered(np.where(lives, self.trace.lives.size_bytes, 0), begin, end)

    def lowered(self, by_bytes: Whole, begin: Whole | None = None, end: Whole | None = None) -> Whole:
        """The same, if each life were so many bytes smaller (0: as it is, and not in ``begin`` and ``end``)."""
        of, count = self.trace.lives, len(self.trace.events)
        rows = np.flatnonzero(by_bytes)
        start = of.alloc_event[rows] if begin is None else begin
        stop = of.requested_event[rows] if end is None else end
        keep = stop > start
        change = np.zeros(count + 2, np.int64)
        size = by_bytes[rows]
        np.subtract.at(change, (start + 1)[keep], size[keep])
        np.add.at(change, (stop + 1)[keep], size[keep])
        return np.cumsum(change[: count + 1])
