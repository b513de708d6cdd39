"""Memory figures for a tracker: the highest values of the steps since the last time that they were taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from vramscope.process.identity import devices
from vramscope.protocol.leak_notes import is_note, is_on_host
from vramscope.protocol.messages import Leak
from vramscope.steps.records import StepRecord

GIB: Final = 1 << 30
PREFIX: Final = "vramscope/"


class Figures(NamedTuple):
    """Values under the names that a tracker shows."""

    step: int
    """Number of the last step that they cover."""
    values: dict[str, float]


class StepFigures:
    """Collects steps on the sampler's thread. ``take`` may be called on any other."""

    def __init__(self, leaks: Callable[[], Sequence[Leak]]) -> None:
        self._leaks = leaks
        self._lock = threading.Lock()
        self._step = self._allocated = self._reserved = self._run_peak = 0
        self._device = -1
        self._totals: dict[int, int] = {}

    def put(self, steps: Iterable[StepRecord]) -> None:
        """Note steps that have ended. About 1 µs each."""
        with self._lock:
            for step in steps:
                cuts = [(step.devices[at], cut) for one in step.intervals for at, cut in enumerate(one.cuts)]
                for device, cut in cuts:
                    if cut.peak_allocated_bytes >= self._allocated:
                        self._allocated, self._device = cut.peak_allocated_bytes, device
                    self._reserved = max(self._reserved, cut.peak_reserved_bytes)
                self._step = step.number
                self._run_peak = max(self._run_peak, self._allocated)

    def take(self) -> Figures | None:
        """Figures of the steps since the last call; None if no step with a GPU has ended since."""
        with self._lock:
            step, device, allocated, reserved = self._step, self._device, self._allocated, self._reserved
            self._allocated = self._reserved = 0
        if not allocated:
            return None
        values = {"peak_allocated_gib": allocated / GIB, "peak_reserved_gib": reserved / GIB}
        if total_bytes := self._total_bytes(device):
            values["headroom_gib"] = (total_bytes - reserved) / GIB
        if reserved:
            values["fragmentation"] = max(0.0, 1 - allocated / reserved)
        leaks = [leak for leak in self._leaks() if not is_on_host(leak) and not is_note(leak, self._run_peak)]
        values["leaks"] = float(len(leaks))
        values["leaked_gib"] = max((leak.held_bytes for leak in leaks), default=0) / GIB
        return Figures(step, {PREFIX + name: round(value, 6) for name, value in values.items()})

    def _total_bytes(self, device: int) -> int:
        if device not in self._totals:
            self._totals[device] = next((one.total_bytes or 0 for one in devices((device,))), 0)
        return self._totals[device]
