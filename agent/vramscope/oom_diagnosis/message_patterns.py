"""Patterns of out-of-memory messages: their beginnings, their amounts, and which version of PyTorch writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_UNITS: Final = {"bytes": 1, "byte": 1} | {f"{unit}ib": 1 << 10 * power for power, unit in enumerate("kmgtpe", 1)}
_UNITS_OF_OTHERS: Final = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE: Final = r"(\d{1,20}(?:\.\d{1,4})?)\s?(bytes?|[KMGTPE]iB|[KMGT]?B)\b"


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern. ``SIZE`` matches an amount, a blank any white space (logs wrap lines), a blank with ``?`` may
    be missing."""
    return re.compile(text.replace(" ?", r"\s{0,40}").replace(" ", r"\s{1,40}").replace("SIZE", _SIZE))


FIELDS: Final = {
    "asked_bytes": [_pattern("Tried to allocate SIZE")],
    "total_bytes": [_pattern("total capaci?ty of SIZE"), _pattern("; SIZE total capacity")],
    "free_bytes": [_pattern("of which SIZE is free"), _pattern("; SIZE free")],
    "limit_bytes": [_pattern("SIZE allowed;")],
    "process_bytes": [_pattern("this process has SIZE memory in use")],
    "allocated_bytes": [_pattern("memory SIZE is allocated by PyTorch"), _pattern("; SIZE already allocated")],
    "private_pools_bytes": [_pattern("with SIZE allocated in private pools")],
    "unallocated_bytes": [_pattern("SIZE is reserved by PyTorch but unallocated")],
    "reserved_bytes": [_pattern("; SIZE reserved in total by PyTorch")],
}
PROCESS: Final = _pattern(r"Process (\d{1,12}) has SIZE memory in use")
DEVICE: Final = re.compile(r"GPU (\d{1,4})\b")
WORKER: Final = re.compile(r"DataLoader worker process (\d{1,6})")
ASYNC: Final = {
    "allocated_bytes": _pattern("Currently allocated ?: SIZE"),
    "asked_bytes": _pattern("Requested ?: SIZE"),
    "total_bytes": _pattern("Device limit ?: SIZE"),
    "free_bytes": _pattern(r"Free \(according to CUDA\) ?: SIZE"),
    "limit_bytes": _pattern(r"PyTorch limit \(set by user-supplied memory fraction\) ?: SIZE"),
}
PREEMPTIVE: Final = _pattern("Requested size: SIZE")
HOST_ASKED: Final = (
    re.compile(r"[Yy]ou tried to allocate (\d{1,20}) (bytes)"),
    _pattern("Unable to allocate SIZE for an array"),
)

_WORDS: Final = {
    "preemptive": r"(?:CUDA|HIP|XPU) out of memory\. Allocation was preemptively rejected",
    "pytorch": r"(?:CUDA|HIP|XPU) out of memory\.\s{0,4}Tried to allocate",
    "cudaMallocAsync": r"Allocation on device \d{1,4} would exceed allowed memory",
    "cublas": r"(?:CUBLAS|HIPBLAS)_STATUS_ALLOC_FAILED|rocblas_status_memory_error",
    "cudnn": r"CUDNN_STATUS_(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)|miopenStatusAllocFailed",
    "bitsandbytes": r"Error out of memory at line \d{1,6} in file [^\n]{0,300}",
    "nccl": r"ncclUnhandledCudaError|unhandled cuda error|NCCL WARN Cuda failure|RCCL error",
    "worker_killed": r"DataLoader worker \(pid\(?s?\)?:? ?[\d, ]{1,200}\) (?:is killed by signal: Killed|exited unexpectedly)",
    "shared_memory": r"workers? (?:are|is) out of shared memory|unable to (?:mmap|open shared memory|write to file)[^\n]{0,200}",
    "host": r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Unable to allocate [^\n]{1,60} for an array"
    r"|\bMemoryError\b|Cannot allocate memory|std::bad_alloc",
    "cuda": r"(?:CUDA|HIP|CUDA driver) error: out of memory|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY"
    r"|hipErrorOutOfMemory",
}
"""Words that begin an error of each kind, the most specific first."""
BEGINNINGS: Final = [(kind, re.compile(words)) for kind, words in _WORDS.items()]


class Numbers:
    """Amounts found in a text, and the error of each."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.rounding: dict[str, int] = {}

    def take(self, name: str, patterns: Iterable[re.Pattern[str]], text: str) -> None:
        for pattern in patterns:
            found = pattern.search(text)
            if found is not None:
                self.values[name], off = amount(found.group(1), found.group(2))
                if off:
                    self.rounding[name] = off
                return


def amount(number: str, unit: str) -> tuple[int, int]:
    """Bytes, and half a unit of the last decimal: ``("1.38", "GiB")`` is 1481763717 with an error of 5368710."""
    size = _UNITS.get(unit.lower()) or _UNITS_OF_OTHERS[unit.lower()]
    if size == 1:
        return round(float(number)), 0
    decimals = len(number.partition(".")[2])
    return round(float(number) * size), -(-size // (2 * 10**decimals))


def wording_of(part: str, *, before_2_1: bool) -> str:
    if before_2_1:
        return "1.11 to 2.0"
    if "capacty" in part:
        return "2.1"
    if "docs.pytorch.org" in part:
        return "2.9 and later"
    return "2.2 to 2.8" if "expandable_segments" in part else "2.1 and later"
