"""The memory floor: what is in use when a step ends, and whether it rises.

On CUDA that is what the allocator says at the cut that the clock makes anyway; on the CPU what the C allocator (glibc) has
handed out, tensors and everything else of the process; elsewhere it is not known.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from itertools import pairwise
from typing import Any, Final

from vramscope.leaks.policy import POLICY
from vramscope.protocol.series import UNKNOWN

HEAP_SHARE: Final = 0.005
"""of the time that asking the C allocator may take"""


class Floor:
    """Fed with one value a step. Some µs; what it keeps grows with the logarithm of the steps.

    What is kept in each step rises from four steps to the next four; what is kept once an epoch, or in evaluations alone, does
    so from some epochs to the next: all scales are looked at, each four times as long as the one before.
    """

    def __init__(self) -> None:
        self._heap = Heap()
        self._scales = [_Scale()]
        self.rises = False
        """on one of the scales at least"""

    def add(self, allocated_bytes: int | None) -> int:
        """The floor in bytes, or UNKNOWN. ``rises`` is up to date afterwards."""
        value = self._heap.used_bytes() if allocated_bytes is None else allocated_bytes
        if value != UNKNOWN:
            lowest, at = value, 0
            while self._scales[at].add(lowest):
                lowest, at = self._scales[at].newest, at + 1
                if at == len(self._scales):
                    self._scales.append(_Scale())
            if at:  # (three steps of four change nothing)
                self.rises = any(scale.rises for scale in self._scales)
        return value


class _Scale:
    def __init__(self) -> None:
        self._values: list[int] = []
        self._lowest: deque[int] = deque(maxlen=POLICY.baseline_rises)
        self.rises = False

    @property
    def newest(self) -> int:
        """The lowest of the window that was full last."""
        return self._lowest[-1]

    def add(self, value: int) -> bool:
        """Whether a window is full now."""
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
    """struct mallinfo2 of glibc 2.33 and later."""

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


class Heap:
    """Bytes that the C allocator has handed out in this process. Some 5 to 40 µs a call, so it is not asked in each short step."""

    def __init__(self) -> None:
        self._ask: Any = None
        try:
            self._ask = ctypes.CDLL(None).mallinfo2
            self._ask.restype = _MallInfo
        except (AttributeError, OSError):
            pass  # another C library
        self._from = 0.0

    def used_bytes(self) -> int:
        """UNKNOWN where glibc is not there, or where it was asked so lately that asking would cost too much."""
        began = time.perf_counter()
        if self._ask is None or began < self._from:
            return UNKNOWN
        info = self._ask()
        self._from = began + (time.perf_counter() - began) / HEAP_SHARE
        return int(info.uordblks + info.hblkhd)
