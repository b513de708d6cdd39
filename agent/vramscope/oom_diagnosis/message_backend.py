"""Which build of PyTorch wrote an out-of-memory message: its backend (CUDA, HIP, XPU and others), its version, and the setting
against fragmentation that it knows."""

from __future__ import annotations

import re
from typing import Final

from vramscope.protocol.gpu_backend import allocator_variable

OLD_FORMATS: Final = ("1.0 to 1.4", "1.5 to 2.0", "1.11 to 2.0")
"""Versions that do not know expandable_segments: it ends the program there."""


def wording_of(part: str, *, before_2_1: bool) -> str:
    if before_2_1:
        if re.search(r"\bcached\)", part):
            return "1.0 to 1.4"
        return "1.11 to 2.0" if "max_split_size_mb" in part else "1.5 to 2.0"
    if "capacty" in part:
        return "2.1"
    if "docs.pytorch.org" in part or "PYTORCH_ALLOC_CONF" in part:
        return "2.9 and later"
    return "2.2 to 2.8" if "expandable_segments" in part else "2.1 and later"


HIP: Final = "HIP out of memory"
_BACKEND: Final = re.compile(r"\b(HIP|XPU|NPU|MLU|MUSA) out of memory")


def software_of(part: str) -> str:
    """Name of the backend that a message is of: CUDA, where it names no other."""
    backend = _BACKEND.search(part)
    return backend.group(1) if backend else "CUDA"


def conf_of(part: str, *, old: bool) -> str:
    """Setting against fragmentation that the version and the backend of this message know; empty where there is none."""
    if "XPU out of memory" in part:
        return ""
    named = re.search(r"PYTORCH_(?:\w{2,8}_)?ALLOC_CONF", part)
    backend = re.search(r"\b(HIP|NPU|MLU|MUSA) out of memory", part)
    variable = named.group() if named else f"PYTORCH_{backend.group(1) if backend else 'CUDA'}_ALLOC_CONF"
    if backend and variable == "PYTORCH_CUDA_ALLOC_CONF":  # builds for other devices keep the words of CUDA's hint
        is_new = wording_of(part, before_2_1=old) == "2.9 and later"
        hip = allocator_variable("2.9" if is_new else None, hip="of unknown version")
        variable = hip if HIP in part else f"PYTORCH_{backend.group(1)}_ALLOC_CONF"
    return f"{variable}={'max_split_size_mb:128' if old else 'expandable_segments:True'}"
