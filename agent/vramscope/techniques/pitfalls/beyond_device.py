"""Pitfall: PyTorch has more memory than the device. On Windows and in WSL the driver then moves part of it to the host.

There it does not run out of memory; it becomes slow instead, as each access crosses the PCIe bus.
"""

from __future__ import annotations

import platform
import sys
from typing import Final

from vramscope.protocol import messages
from vramscope.protocol.number_format import amount
from vramscope.techniques.observation import TrainingState

ADVICE: Final = (
    'lower the peak until it fits, or set "CUDA - Sysmem Fallback Policy" to "Prefer No Sysmem Fallback" in the NVIDIA '
    "Control Panel, so that it raises an out-of-memory error instead"
)


def find(training: TrainingState) -> messages.Pitfall | None:
    """Compare peak reserved memory of each device with the device's own, where a driver can fall back to the host's memory."""
    import torch

    system = fallback_system()
    if not system or not torch.cuda.is_initialized():
        return None
    for device in range(torch.cuda.device_count()):
        total = torch.cuda.get_device_properties(device).total_memory
        reserved = torch.cuda.max_memory_reserved(device)
        if reserved > total:
            return training.finding(
                "memory-beyond-device",
                f"PyTorch reserved {amount(reserved)} on cuda:{device}, which has {amount(total)}. The driver of {system} has "
                f"moved at least {amount(reserved - total)} to host memory, and steps that use it are slow.",
                ADVICE,
            )
    return None


def fallback_system() -> str:
    """``Windows`` or ``WSL``; "" where the driver never falls back to host memory."""
    if sys.platform == "win32":
        return "Windows"
    return "WSL" if "microsoft" in platform.release().lower() else ""
