"""Names of a PyTorch build: CUDA or HIP, and the environment variable of the allocator's settings.

PyTorch for ROCm has the functions of ``torch.cuda``, but its errors and its variable have HIP's name.
"""

from __future__ import annotations

import re
from typing import Final

CUDA_VARIABLE: Final = "PYTORCH_CUDA_ALLOC_CONF"
"""Every PyTorch for CUDA reads it."""
HIP_VARIABLE: Final = "PYTORCH_HIP_ALLOC_CONF"
"""PyTorch for ROCm reads it. From 2.9 on it is deprecated there."""
NEUTRAL_VARIABLE: Final = "PYTORCH_ALLOC_CONF"
"""PyTorch 2.9 and later read it for each backend."""
_NEUTRAL_FROM: Final = (2, 9)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)")


def is_hip(torch: str | None, hip: str | None = None) -> bool:
    """Return whether a build is for ROCm.

    torch   version of PyTorch: ``2.8.0+rocm6.4``. A build without such a suffix is known by ``hip`` alone
    hip     ``torch.version.hip``, if it was reported
    """
    return bool(hip) or "+rocm" in (torch or "")


def software(torch: str | None, hip: str | None = None) -> str:
    """Return ``CUDA`` or ``HIP``."""
    return "HIP" if is_hip(torch, hip) else "CUDA"


def allocator_variable(torch: str | None, hip: str | None = None) -> str:
    """Return the environment variable with the allocator's settings that this build reads without a warning."""
    if not is_hip(torch, hip):
        return CUDA_VARIABLE
    version = _VERSION.match(torch or "")
    is_neutral = version is not None and (int(version[1]), int(version[2])) >= _NEUTRAL_FROM
    return NEUTRAL_VARIABLE if is_neutral else HIP_VARIABLE


def variables_read(hip: str | None) -> tuple[str, ...]:
    """Return the variables that a build reads, in PyTorch's order. Before 2.9 the last one is not read."""
    return (CUDA_VARIABLE, HIP_VARIABLE, NEUTRAL_VARIABLE) if hip else (CUDA_VARIABLE, NEUTRAL_VARIABLE)
