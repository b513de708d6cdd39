"""The run's steps up to now, for a record of an error: where each ended and how high it was, thinned; and what inputs of other
sizes took."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vramscope.memory.step_splits import allocated_before_forward
from vramscope.oom_diagnosis.growth import COLUMNS
from vramscope.steps.phase import BACKWARD, FORWARD
from vramscope.steps.records import StepRecord

MOST_STEPS: Final = 128


MOST_SIZES: Final = 64
"""shapes of inputs, the newest: of a training whose inputs are never as long as before"""

Shape = tuple[int, ...]


class Course:
    """Keeps every step of a young run, then every second, every fourth .. : at most MOST_STEPS, numbers alone; and of MOST_SIZES
    shapes of the input how much they took."""

    def __init__(self) -> None:
        self._kept: list[StepRecord] = []
        self._every = 1
        self._sizes: dict[tuple[int, int, Shape], int] = {}

    def put(self, steps: Iterable[StepRecord]) -> None:
        """Steps that have ended, oldest first. On the sampler's thread; some 4 µs each."""
        for step in steps:
            self._sizes |= _grown(self._sizes, step)
            while len(self._sizes) > MOST_SIZES:
                self._sizes.pop(next(iter(self._sizes)))
            if step.number % self._every == 0:
                self._kept.append(step)
            if len(self._kept) >= MOST_STEPS:
                self._every *= 2
                self._kept = [kept for kept in self._kept if kept.number % self._every == 0]

    def sizes(self, device: int, root: int, more: Sequence[StepRecord] = ()) -> list[tuple[list[int], int]]:
        """(shape of the largest input of a step, by how much its forward and backward rose), of one root and device. From any
        thread."""
        known = dict(self._sizes)
        for step in more:
            known |= _grown(known, step)
        return [(list(shape), peak) for (on, of, shape), peak in known.items() if (on, of) == (device, root)]

    def columns(self, device: int, more: Sequence[StepRecord] = ()) -> dict[str, bytes]:
        """What is kept, and ``more`` that nobody has put yet, of one device. From any thread."""
        steps = {step.number: step for step in (*self._kept, *more) if device in step.devices and step.intervals}
        rows = []
        for number, step in sorted(steps.items()):
            cuts = [
                stretch.cuts[at] for stretch in step.intervals if (at := step.devices.index(device)) < len(stretch.cuts)
            ]
            if cuts:
                rows.append((number, cuts[-1].allocated_bytes, max(cut.peak_allocated_bytes for cut in cuts)))
        return {
            name: array("q", column).tobytes() for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=False)
        }


def _grown(known: Mapping[tuple[int, int, Shape], int], step: StepRecord) -> dict[tuple[int, int, Shape], int]:
    """The entries of a step: by how much its forward and backward rose. What an optimizer copies goes with no input."""
    grown: dict[tuple[int, int, Shape], int] = {}
    for at, device in enumerate(step.devices if step.largest_inputs else ()):
        stretches = [one for one in step.intervals if at < len(one.cuts)]
        before = allocated_before_forward(stretches, at)
        peaks = [one.cuts[at].peak_allocated_bytes for one in stretches if one.phase in (FORWARD, BACKWARD)]
        if before is None or not peaks:
            continue
        for root, shape in list(step.largest_inputs.items()):
            key = device, root, tuple(shape)
            grown[key] = max(known.get(key, 0), max(peaks) - before)
    return grown
