"""Memory figures for a tracker: the highest values of the steps since the last time that they were taken."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from vramscope.process.identity import devices
from vramscope.protocol.leak_notes import is_leak, is_note, is_on_host
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
        self._step = self._run_peak_bytes = 0
        self._peaks: dict[int, tuple[int, int]] = {}
        """Highest allocated and reserved bytes of each device since the last call of ``take``."""
        self._totals: dict[int, int] = {}

    def put(self, steps: Iterable[StepRecord]) -> None:
        """Note steps that have ended. About 1 µs each."""
        with self._lock:
            for step in steps:
                for interval in step.intervals:
                    for device, cut in zip(step.devices, interval.cuts, strict=False):
                        allocated, reserved = self._peaks.get(device, (0, 0))
                        self._peaks[device] = (
                            max(allocated, cut.peak_allocated_bytes),
                            max(reserved, cut.peak_reserved_bytes),
                        )
                self._step = step.number

    def take(self) -> Figures | None:
        """Figures of the steps since the last call, on the device with the highest peak; None if none has ended on a GPU."""
        with self._lock:
            step, peaks, self._peaks = self._step, self._peaks, {}
        if not peaks:
            return None
        device, (allocated, reserved) = max(peaks.items(), key=lambda peak: peak[1])
        self._run_peak_bytes = max(self._run_peak_bytes, allocated)
        values = {"peak_allocated_gib": allocated / GIB, "peak_reserved_gib": reserved / GIB}
        if total_bytes := self._total_bytes(device):
            values["headroom_gib"] = (total_bytes - reserved) / GIB
        if reserved:
            values["fragmentation"] = max(0.0, 1 - allocated / reserved)
        peak_bytes = self._run_peak_bytes
        leaks = [
            leak for leak in self._leaks() if is_leak(leak) and not is_on_host(leak) and not is_note(leak, peak_bytes)
        ]
        values["leaks"] = float(len(leaks))
        values["leaked_gib"] = max((leak.held_bytes for leak in leaks), default=0) / GIB
        return Figures(step, {PREFIX + name: round(value, 6) for name, value in values.items()})

    def _total_bytes(self, device: int) -> int:
        if device not in self._totals:
            self._totals[device] = next((one.total_bytes or 0 for one in devices((device,))), 0)
        return self._totals[device]
