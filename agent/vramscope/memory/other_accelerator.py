"""Memory of a device that is not CUDA's: Intel's XPU, Apple's MPS, and whatever else ``torch.accelerator`` knows.

Only counters of the present moment are read. Nothing is reset, so the peaks of steps stay unknown. No XPU is initialized.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

COUNTERS: Final = {
    # column of a sample -> counter of torch.accelerator and torch.xpu
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "segments": "segment.all.current",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
}
FILES_OF_XPU: Final = (Path("/dev/dri"), Path("/dev/dxg"))
"""By which Linux, also within Windows, reaches a GPU of Intel."""
WATCHED_OTHERWISE: Final = ("cuda", "cpu", "meta")


class OtherAccelerator:
    """The accelerator of this build of PyTorch. ``kind`` is its device type, such as ``xpu``."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def devices_in_use(self) -> list[int]:
        """Indices of the devices on which PyTorch has reserved memory."""
        return [index for index in range(self._count()) if any(self.read(index).get(name) for name in _HELD)]

    def is_missing(self) -> bool:
        """Whether this machine certainly has no such device. The device's driver is not asked, as that could initialize it."""
        if self.kind == "mps":
            return not self._count()
        return self.kind == "xpu" and sys.platform == "linux" and not any(path.exists() for path in FILES_OF_XPU)

    def read(self, index: int) -> dict[str, int]:
        """Known columns of a sample. Empty before the device is initialized, and where it counts nothing. Takes about 0.1 ms."""
        try:
            if self.kind == "mps":
                return self._read_mps()
            stats = self._stats(index)
        except RuntimeError:  # NotImplementedError of a device without these counters is one, too
            return {}
        return {name: int(stats[counter]) for name, counter in COUNTERS.items() if counter in stats}

    def _count(self) -> int:
        import torch

        if self.kind == "mps":
            return int(torch.backends.mps.is_available())
        return int(torch.accelerator.device_count()) if self._is_initialized() else 0

    def _is_initialized(self) -> bool:
        """PyTorch before 2.9 tells it in the module of the device only."""
        import torch

        of_all = getattr(torch._C, "_accelerator_isAllocatorInitialized", None)
        of_kind = getattr(getattr(torch, self.kind, None), "is_initialized", None)
        return bool((of_kind or of_all or bool)())

    def _stats(self, index: int) -> dict[str, Any]:
        import torch

        module = torch.accelerator if hasattr(torch.accelerator, "memory_stats") else getattr(torch, self.kind, None)
        read = getattr(module, "memory_stats", None)
        return {} if read is None or not self._is_initialized() else read(index)

    @staticmethod
    def _read_mps() -> dict[str, int]:
        import torch

        allocated = int(torch.mps.current_allocated_memory())
        # Metal's figure includes PyTorch's cache, and the graphs that are outside of it.
        return {"allocated_bytes": allocated, "process_device_bytes": int(torch.mps.driver_allocated_memory())}


_HELD: Final = ("allocated_bytes", "reserved_bytes")


def other_accelerator() -> OtherAccelerator | None:
    """Return the accelerator of this build of PyTorch; None for CUDA, ROCm and none. Initializes nothing.

    A build for CUDA is not asked: PyTorch 2.6 counts its devices to answer, after which a forked process cannot use CUDA.
    """
    torch = sys.modules.get("torch")
    current = getattr(getattr(torch, "accelerator", None), "current_accelerator", None)
    if torch is None or current is None or torch.version.cuda is not None or torch.version.hip is not None:
        return None
    try:
        device = current()
    except RuntimeError:  # PyTorch 2.6 raises it where no accelerator is available
        return None
    return None if device is None or device.type in WATCHED_OTHERWISE else OtherAccelerator(device.type)
