"""Memory in use on a device that shares the host's memory (GB10, Jetson), where NVML reports none.

CUDA reports it. It must not be asked while a CUDA graph is captured: a call from another thread could end the capture.
"""

from __future__ import annotations

import threading
from typing import Any

from vramscope.protocol.series import UNKNOWN


class GraphCaptures:
    """Counts the captures of CUDA graphs that are in progress. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    def begin(self, *_: Any) -> None:
        """Note that a capture begins. Waits for a reading that is in progress."""
        with self._lock:
            self._running += 1

    def end(self, *_: Any) -> None:
        """Note that a capture has ended. One that failed may never end: then nothing is read any more."""
        with self._lock:
            self._running -= 1

    def used_bytes(self, device: int) -> int:
        """Memory of the device that is in use by any process; UNKNOWN while a graph is captured."""
        import torch

        with self._lock:
            if self._running:
                return UNKNOWN
            free, total = torch.cuda.mem_get_info(device)
        return int(total - free)


CAPTURES = GraphCaptures()
"""Those of this process."""


def is_unified(properties: Any) -> bool:
    """Whether a device shares the host's memory, by its properties in PyTorch."""
    return bool(getattr(properties, "is_integrated", False))
