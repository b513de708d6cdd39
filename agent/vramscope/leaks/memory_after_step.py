"""Memory after each step, and whether it rises.

On CUDA these are the allocated bytes that the clock reads at the end of a step anyway. On the CPU they are the bytes that the C
allocator (glibc) has handed out, tensors and everything else of the process. Elsewhere they are unknown.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.end_numbers import MemorySinceScan
from vramscope.leaks.policy import POLICY
from vramscope.protocol.series import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vramscope.steps.records import PhaseInterval

HEAP_SHARE: Final = 0.005
"""Share of the time that reading the C allocator may take."""


class MemoryAfterStep:
    """Takes one value per step, in some µs. Its size grows with the logarithm of the steps.

    A leak in each step rises from four steps to the next four; a leak once an epoch rises from some epochs to the next. So there
    are several scales, each four times as long as the one before.
    """

    def __init__(self) -> None:
        self._heap = ProcessHeap()
        self._scales = [_Scale()]
        self.rises = False
        """True where at least one scale rises."""
        self.since_scan = MemorySinceScan()

    def add(self, allocated_bytes: int | None, intervals: Sequence[PhaseInterval] = ()) -> int:
        """Add a step. Returns memory after it in bytes, or UNKNOWN, and updates ``rises``."""
        if allocated_bytes is not None:
            self.since_scan.add(allocated_bytes, intervals)
        value = self._heap.used_bytes() if allocated_bytes is None else allocated_bytes
        if value != UNKNOWN:
            lowest, at = value, 0
            while self._scales[at].add(lowest):
                lowest, at = self._scales[at].newest, at + 1
                if at == len(self._scales):
                    self._scales.append(_Scale())
            if at:  # usually there is none: three steps of four change nothing
                self.rises = any(scale.rises for scale in self._scales)
        return value


class _Scale:
    def __init__(self) -> None:
        self._values: list[int] = []
        self._lowest: deque[int] = deque(maxlen=POLICY.baseline_rises)
        self.rises = False

    @property
    def newest(self) -> int:
        """Lowest value of the last full window."""
        return self._lowest[-1]

    def add(self, value: int) -> bool:
        """Add a value. True where a window is full now."""
        self._values.append(value)
        if len(self._values) < POLICY.baseline_window:
            return False
        self._lowest.append(min(self._values))
        self._values.clear()
        self.rises = len(self._lowest) == POLICY.baseline_rises and all(
            after - before >= POLICY.baseline_rise_bytes for before, after in pairwise(self._lowest)
        )
        return True


class _MallInfo(ctypes.Structure):
    """The struct mallinfo2 of glibc 2.33 and later."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


class ProcessHeap:
    """Bytes that the C allocator has handed out in this process. A call takes 5 to 40 µs, too much for each short step."""

    def __init__(self) -> None:
        self._ask: Any = None
        try:
            self._ask = ctypes.CDLL(None).mallinfo2
            self._ask.restype = _MallInfo
        except (AttributeError, OSError):
            pass  # another C library
        self._from = 0.0

    def used_bytes(self) -> int:
        """Bytes, or UNKNOWN without glibc and soon after the last call."""
        began = time.perf_counter()
        if self._ask is None or began < self._from:
            return UNKNOWN
        info = self._ask()
        self._from = began + (time.perf_counter() - began) / HEAP_SHARE
        return int(info.uordblks + info.hblkhd)
