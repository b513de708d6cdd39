"""The run's steps up to now, thinned: where each ended and how high it was, for a record of an error."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from vramscope.oom_growth import COLUMNS
from vramscope.steps.clock import FinishedStep

MOST_STEPS: Final = 128


class Course:
    """Keeps every step of a young run, then every second, every fourth .. : at most MOST_STEPS, numbers alone."""

    def __init__(self) -> None:
        self._kept: list[FinishedStep] = []
        self._every = 1

    def put(self, steps: Iterable[FinishedStep]) -> None:
        """Steps that have ended, oldest first. On the sampler's thread; some 0.2 µs each."""
        for step in steps:
            if step.number % self._every == 0:
                self._kept.append(step)
            if len(self._kept) >= MOST_STEPS:
                self._every *= 2
                self._kept = [kept for kept in self._kept if kept.number % self._every == 0]

    def columns(self, device: int, more: Sequence[FinishedStep] = ()) -> dict[str, bytes]:
        """What is kept, and ``more`` that nobody has put yet, of one device. From any thread."""
        steps = {step.number: step for step in (*self._kept, *more) if device in step.devices and step.stretches}
        rows = []
        for number, step in sorted(steps.items()):
            cuts = [
                stretch.cuts[at] for stretch in step.stretches if (at := step.devices.index(device)) < len(stretch.cuts)
            ]
            if cuts:
                rows.append((number, cuts[-1].allocated_bytes, max(cut.peak_allocated_bytes for cut in cuts)))
        return {
            name: array("q", column).tobytes() for name, column in zip(COLUMNS, zip(*rows, strict=True), strict=False)
        }
