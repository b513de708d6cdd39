"""Records of a step: its phase intervals, and what is known when it has ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from vramscope.memory.peak_counters import Interval
from vramscope.protocol import series
from vramscope.steps.other_arguments import OtherArguments


class PhaseInterval(NamedTuple):
    """One uninterrupted stay in one phase. Times are perf_counter_ns."""

    phase: int
    start_ns: int
    end_ns: int
    cuts: list[Interval]
    """Counters of each watched device, in the order of StepClock.counters."""
    agent_ns: int = 0
    """Time within the interval that the agent itself took."""

    @property
    def own_ns(self) -> int:
        """Duration without the agent's share."""
        return max(0, self.end_ns - self.start_ns - self.agent_ns)


def merged(intervals: Sequence[PhaseInterval]) -> PhaseInterval:
    """One interval over all of these, with the highest of each peak. Its phase is that of the last, and says nothing."""
    last = intervals[-1]
    if len(intervals) == 1:  # most groups of plain steps
        return last
    cuts = []
    for position, newest in enumerate(last.cuts):
        of_device = [one.cuts[position] for one in intervals if position < len(one.cuts)]
        cuts.append(
            newest._replace(
                peak_allocated_bytes=max(cut.peak_allocated_bytes for cut in of_device),
                peak_reserved_bytes=max(cut.peak_reserved_bytes for cut in of_device),
                reset_seen=max(cut.reset_seen for cut in of_device),
            )
        )
    spent_ns = sum(one.agent_ns for one in intervals)
    return PhaseInterval(last.phase, intervals[0].start_ns, last.end_ns, cuts, spent_ns)


def highest_allocated(intervals: Sequence[PhaseInterval]) -> list[int]:
    """Highest allocated bytes of these intervals, by the position of the device."""
    return [
        max(one.cuts[position].peak_allocated_bytes for one in intervals if position < len(one.cuts))
        for position in range(len(intervals[-1].cuts))
    ]


class CategoryBytes(NamedTuple):
    """Bytes of one device by category, in the order of ``series.CATEGORIES``; UNKNOWN where not known."""

    parameters: int = series.UNKNOWN
    gradients: int = series.UNKNOWN
    optimizer: int = series.UNKNOWN
    buffers: int = series.UNKNOWN
    activations: int = series.UNKNOWN
    workspaces: int = series.UNKNOWN
    other: int = series.UNKNOWN

    @property
    def is_complete(self) -> bool:
        """Whether each byte has a known category. Unknown workspaces are part of other."""
        return series.UNKNOWN not in self[:5] and self.other != series.UNKNOWN


class AfterStep(NamedTuple):
    """What is still alive when a step has ended."""

    graphs_alive: int
    after_step_bytes: int


def after_cuts(cuts: Sequence[Interval]) -> AfterStep:
    """What the last readings of a step tell; UNKNOWN without a device."""
    return AfterStep(series.UNKNOWN, sum(cut.allocated_bytes for cut in cuts) if cuts else series.UNKNOWN)


UNKNOWN_AFTER_STEP = AfterStep(series.UNKNOWN, series.UNKNOWN)


class StepRecord(NamedTuple):
    """One optimizer step, as the training thread recorded it. Times are perf_counter_ns."""

    number: int
    end_ns: int
    intervals: list[PhaseInterval]
    micro_steps: int
    watched: bool
    agent_ns: int
    devices: tuple[int, ...]
    breakdown: list[tuple[CategoryBytes, CategoryBytes]] | None
    """Categories at the step's end and at its peak, one pair a device; None where nobody counted in this step."""
    after: AfterStep = UNKNOWN_AFTER_STEP
    largest_inputs: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    """Shape of the largest first argument of a forward pass with gradients, by root module (its id, never dereferenced)."""
    beside_inputs: Mapping[int, OtherArguments] = MappingProxyType({})
    """Sizes of the other arguments beside the first one, by root module."""
    steps: int = 1
    """Number of steps that the record covers; ``number`` is the last of them. More than 1: plain steps, with one reading."""
    thread_ns: int = series.UNKNOWN
    """CPU time of the training thread since the record before, the agent's included."""
