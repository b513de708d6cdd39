"""Finds the step with the highest allocated memory so far, for the summary on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from vramscope.memory.peak_counters import PeakCounter
from vramscope.protocol.messages import Tail
from vramscope.protocol.series import PHASES
from vramscope.steps.records import CategoryBytes, StepRecord


class HighestStep(NamedTuple):
    """Peak of one device."""

    device: int
    step: int | None
    """Number of the step; None if the peak is after the last step."""
    phase: int
    """Position in ``series.PHASES``."""
    is_phase_known: bool
    """False if the phases of the step were not read, or if several steps were measured together."""
    allocated_bytes: int
    reserved_bytes: int
    """Highest reserved memory of the run, which may be in another step."""
    categories: CategoryBytes | None
    """Memory by category at the peak; None if it was not counted."""


class HighestSteps:
    """Highest step of each device. ``put`` is called on the sampler's thread; the other methods on any thread."""

    def __init__(self) -> None:
        self._of_device: dict[int, HighestStep] = {}

    def put(self, steps: Iterable[StepRecord]) -> None:
        """Note steps that have ended. About 1 µs each."""
        for step in steps:
            for position, device in enumerate(step.devices):
                self._put(step, position, device)

    def put_tails(self, tails: Iterable[Tail]) -> None:
        """Note peaks after the last step, for example those of an evaluation."""
        for tail in tails:
            known = self._of_device.get(tail.device)
            if known is None or tail.peak_allocated_bytes <= known.allocated_bytes:
                continue
            phase = PHASES.index(tail.phase) if tail.phase in PHASES else 0
            reserved = max(known.reserved_bytes, tail.peak_reserved_bytes)
            self._of_device[tail.device] = HighestStep(
                tail.device, None, phase, tail.phase in PHASES, tail.peak_allocated_bytes, reserved, None
            )

    def highest(self) -> HighestStep | None:
        """Return the highest step of any device; None before the first step on a device."""
        return max(self._of_device.values(), key=lambda one: one.allocated_bytes, default=None)

    def peak_bytes(self, counters: Iterable[PeakCounter]) -> int | None:
        """Return the highest allocated memory so far, including the running step; None without a GPU."""
        highest = self.highest()
        peaks = [counter.so_far().peak_allocated_bytes for counter in counters]
        return max([*peaks, *([] if highest is None else [highest.allocated_bytes])], default=None)

    def _put(self, step: StepRecord, position: int, device: int) -> None:
        cuts = [(one.phase, one.cuts[position]) for one in step.intervals if position < len(one.cuts)]
        if not cuts:
            return
        phase, cut = max(cuts, key=lambda one: one[1].peak_allocated_bytes)
        reserved = max(cut.peak_reserved_bytes for _, cut in cuts)
        known = self._of_device.get(device)
        if known is not None and cut.peak_allocated_bytes <= known.allocated_bytes:
            if reserved > known.reserved_bytes:
                self._of_device[device] = known._replace(reserved_bytes=reserved)
            return
        self._of_device[device] = HighestStep(
            device,
            step.number,
            phase,
            step.watched and step.steps == 1,
            cut.peak_allocated_bytes,
            max(reserved, 0 if known is None else known.reserved_bytes),
            None if not step.breakdown or position >= len(step.breakdown) else step.breakdown[position][1],
        )
