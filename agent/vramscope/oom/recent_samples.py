"""The last minute of samples and the course of the steps, kept by the sampler so that a record of an error has them even if
nothing was sent."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from typing import Final

from vramscope.oom.step_history import Course
from vramscope.protocol import series

KEPT_NS: Final = 60_000_000_000
MOST_ROWS: Final = 600
"""of one device; with shorter intervals than 100 ms every n-th is kept"""


class Recent:
    """Rows of the stream ``samples``, by device. ``put`` comes from the sampler's thread, the rest from any."""

    def __init__(self, interval_ms: int) -> None:
        self.course = Course()
        self._every = max(1, round(KEPT_NS / 1e6 / MOST_ROWS / max(1, interval_ms)))
        self._rows: dict[int, deque[dict[str, int]]] = {}
        self._passed: dict[int, int] = {}
        self._newest: dict[int, dict[str, int]] = {}
        self._least_outside: dict[int, int] = {}

    def put(self, device: int, row: dict[str, int]) -> None:
        """A row that nobody changes any more."""
        before = self._newest.get(device, {})
        self._newest[device] = row
        outside = outside_bytes(row)
        # NVML and the allocator are not read in the same instant: only where nothing moved between two rows do they agree.
        if outside is not None and row.get("reserved_bytes") == before.get("reserved_bytes"):
            self._least_outside[device] = min(outside, self._least_outside.get(device, outside))
        passed = self._passed.get(device, 0)
        self._passed[device] = (passed + 1) % self._every
        if passed == 0:
            self._rows.setdefault(device, deque(maxlen=MOST_ROWS)).append(row)

    def newest(self, device: int) -> dict[str, int]:
        return dict(self._newest.get(device, {}))

    def least_outside_bytes(self, device: int) -> int | None:
        """The least that this process had on the device besides what PyTorch reserved; None: NVML does not tell."""
        return self._least_outside.get(device)

    def columns(self, device: int, until_ns: int) -> dict[str, bytes]:
        """The last minute before a moment, as columns; what is not known in any row is left out."""
        rows = [row for row in list(self._rows.get(device, ())) if row["time_ns"] >= until_ns - KEPT_NS]
        names = [
            name for name in series.SAMPLES if any(row.get(name, series.UNKNOWN) != series.UNKNOWN for row in rows)
        ]
        return {name: array("q", [row.get(name, series.UNKNOWN) for row in rows]).tobytes() for name in names}


def outside_bytes(row: Mapping[str, int]) -> int | None:
    """What the process has on the device besides PyTorch's, of one sample."""
    process, reserved = row.get("process_device_bytes", series.UNKNOWN), row.get("reserved_bytes", series.UNKNOWN)
    return None if series.UNKNOWN in (process, reserved) else max(0, process - reserved)
