"""History of the steps for a record of an error: memory after each step and its peak, thinned; and the need of inputs
of other sizes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from vramscope.memory.category_arithmetic import allocated_before_forward
from vramscope.oom_diagnosis.growth import COLUMNS
from vramscope.steps.other_arguments import NONE, OtherArguments
from vramscope.steps.phase import BACKWARD, FORWARD
from vramscope.steps.records import StepRecord

MOST_STEPS: Final = 128
MOST_SIZES: Final = 64
"""Newest shapes of inputs. There may be a new one in each step."""

Shape = tuple[int, ...]


class Rise(NamedTuple):
    """Need of the steps with one input."""

    bytes: int
    """By how much forward and backward raised the memory, at most."""
    beside: OtherArguments
    """Sizes of the other arguments, at most."""


class StepHistory:
    """Every step of a young run, then every second, every fourth, and so on: at most MOST_STEPS. Numbers alone."""

    def __init__(self) -> None:
        self._kept: list[StepRecord] = []
        self._every = 1
        self._sizes: dict[tuple[int, int, Shape], Rise] = {}

    def put(self, steps: Iterable[StepRecord]) -> None:
        """Add steps that have ended, oldest first. On the sampler's thread; about 4 µs each."""
        for step in steps:
            self._sizes |= _grown(self._sizes, step)
            while len(self._sizes) > MOST_SIZES:
                self._sizes.pop(next(iter(self._sizes)))
            if step.number % self._every == 0:
                self._kept.append(step)
            if len(self._kept) >= MOST_STEPS:
                self._every *= 2
                self._kept = [kept for kept in self._kept if kept.number % self._every == 0]

    def sizes(
        self, device: int, root: int, more: Sequence[StepRecord] = (), beside: OtherArguments = NONE
    ) -> list[tuple[list[int], int]]:
        """Pairs of one root and device: shape of a step's largest input, and by how much forward and backward raised the memory.

        Those with as much beside their first argument alone. From any thread.
        """
        known = dict(self._sizes)
        for step in more:
            known |= _grown(known, step)
        return [
            (list(shape), rise.bytes)
            for (on, of, shape), rise in known.items()
            if (on, of) == (device, root) and beside.is_covered_by(rise.beside)
        ]

    def columns(self, device: int, more: Sequence[StepRecord] = ()) -> dict[str, bytes]:
        """Columns of one device, of the kept steps and ``more`` that were not added yet. From any thread."""
        steps = {step.number: step for step in (*self._kept, *more) if device in step.devices and step.intervals}
        rows = []
        for number, step in sorted(steps.items()):
            cuts = [
                interval.cuts[at]
                for interval in step.intervals
                if (at := step.devices.index(device)) < len(interval.cuts)
            ]
            if cuts:
                rows.append((number, cuts[-1].allocated_bytes, max(cut.peak_allocated_bytes for cut in cuts)))
        return {
            name: array("q", column).tobytes() for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=False)
        }


def _grown(known: Mapping[tuple[int, int, Shape], Rise], step: StepRecord) -> dict[tuple[int, int, Shape], Rise]:
    """Entries of a step: by how much forward and backward raised the memory. An optimizer's copies do not depend on the input."""
    grown: dict[tuple[int, int, Shape], Rise] = {}
    for at, device in enumerate(step.devices if step.largest_inputs else ()):
        intervals = [one for one in step.intervals if at < len(one.cuts)]
        before = allocated_before_forward(intervals, at)
        peaks = [one.cuts[at].peak_allocated_bytes for one in intervals if one.phase in (FORWARD, BACKWARD)]
        if before is None or not peaks:
            continue
        for root, shape in list(step.largest_inputs.items()):
            key = device, root, tuple(shape)
            most, beside = known.get(key, Rise(0, NONE)), step.beside_inputs.get(root, NONE)
            grown[key] = Rise(max(most.bytes, max(peaks) - before), most.beside.at_least(beside))
    return grown
