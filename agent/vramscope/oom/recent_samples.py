"""Samples of the last minute and the history of the steps, in memory, for a record of an error."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping
from typing import Final

from vramscope.oom.step_history import StepHistory
from vramscope.protocol import series

KEPT_NS: Final = 60_000_000_000
MOST_ROWS: Final = 600
"""Rows of one device. With shorter intervals than 100 ms, every n-th is kept."""


class RecentSamples:
    """Rows of the stream ``samples``, by device. The sampler's thread calls ``put``, any thread the rest."""

    def __init__(self, interval_ms: int) -> None:
        self.steps = StepHistory()
        self._every = max(1, round(KEPT_NS / 1e6 / MOST_ROWS / max(1, interval_ms)))
        self._rows: dict[int, deque[dict[str, int]]] = {}
        self._passed: dict[int, int] = {}
        self._newest: dict[int, dict[str, int]] = {}
        self._least_outside: dict[int, int] = {}

    def put(self, device: int, row: dict[str, int]) -> None:
        """Add a row. It must not change afterwards."""
        before = self._newest.get(device, {})
        self._newest[device] = row
        outside = outside_bytes(row)
        # NVML and the allocator are not read at the same instant. They agree only where nothing moved between two rows.
        # Before PyTorch has reserved anything, CUDA's context may still be growing.
        if outside is not None and 0 < row.get("reserved_bytes", 0) == before.get("reserved_bytes"):
            self._least_outside[device] = min(outside, self._least_outside.get(device, outside))
        passed = self._passed.get(device, 0)
        self._passed[device] = (passed + 1) % self._every
        if passed == 0:
            self._rows.setdefault(device, deque(maxlen=MOST_ROWS)).append(row)

    def newest(self, device: int) -> dict[str, int]:
        return dict(self._newest.get(device, {}))

    def least_outside_bytes(self, device: int) -> int | None:
        """Lowest device memory of this process outside PyTorch; None: NVML does not report it."""
        return self._least_outside.get(device)

    def columns(self, device: int, until_ns: int) -> dict[str, bytes]:
        """Columns of the minute before a time; a column that no row has is left out."""
        rows = [row for row in list(self._rows.get(device, ())) if row["time_ns"] >= until_ns - KEPT_NS]
        names = [
            name for name in series.SAMPLES if any(row.get(name, series.UNKNOWN) != series.UNKNOWN for row in rows)
        ]
        return {name: array("q", [row.get(name, series.UNKNOWN) for row in rows]).tobytes() for name in names}


def outside_bytes(row: Mapping[str, int]) -> int | None:
    """Device memory of the process outside PyTorch, of one sample; None if unknown, as while an engine sleeps."""
    process, reserved = row.get("process_device_bytes", series.UNKNOWN), row.get("reserved_bytes", series.UNKNOWN)
    return None if series.UNKNOWN in (process, reserved) or process < reserved else process - reserved
