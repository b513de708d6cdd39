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

from vramscope.wire import UNKNOWN

WINDOW_STEPS: Final = 4
WINDOWS: Final = 3
"""in a row whose lowest values must rise"""
LEAST_RISE_BYTES: Final = 32 * 1024
HEAP_SHARE: Final = 0.005
"""of the time that asking the C allocator may take"""


class Floor:
    """Fed with one value a step; keeps minima of windows that grow with the run, so a slow rise is seen later, and seen."""

    def __init__(self) -> None:
        self._heap = Heap()
        self._window = WINDOW_STEPS
        self._values: list[int] = []
        self._minima: deque[int] = deque(maxlen=64)
        self.rises = False

    def add(self, allocated_bytes: int | None) -> int:
        """The floor in bytes, or UNKNOWN. ``rises`` is up to date afterwards."""
        value = self._heap.used_bytes() if allocated_bytes is None else allocated_bytes
        if value == UNKNOWN:
            return value
        self._values.append(value)
        if len(self._values) >= self._window:
            self._minima.append(min(self._values))
            self._values.clear()
            last = list(self._minima)[-WINDOWS:]
            self.rises = len(last) == WINDOWS and all(b - a >= LEAST_RISE_BYTES for a, b in pairwise(last))
            if len(self._minima) == self._minima.maxlen:
                # Twice as wide windows from now on: half of the minima stand for all.
                pairs = list(self._minima)
                self._minima.clear()
                self._minima.extend(min(pair) for pair in zip(pairs[::2], pairs[1::2], strict=True))
                self._window *= 2
        return value


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
