"""Amounts in out-of-memory messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_UNITS: Final = {"": 1, "bytes": 1, "byte": 1} | {
    f"{unit}ib": 1 << 10 * power for power, unit in enumerate("kmgtpe", 1)
}
_UNITS_OF_OTHERS: Final = {"b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SIZE: Final = r"(?<![\d.])(?<![\d.]\n)(\d{1,20}(?:\.\d{1,4})?)\s?(bytes?|[KMGTPE]iB|[KMGT]?B)\b"
"""An amount, and never the second half of one that a line break has cut."""


def _pattern(text: str) -> re.Pattern[str]:
    """Compile a pattern. ``SIZE`` matches an amount, a blank any white space (logs wrap lines), a blank with ``?`` may
    be missing."""
    return re.compile(text.replace(" ?", r"\s{0,40}").replace(" ", r"\s{1,40}").replace("SIZE", _SIZE))


FIELDS: Final = {
    "asked_bytes": [_pattern("[Tt]ried to allocate SIZE")],
    "total_bytes": [_pattern("total capaci?ty of SIZE"), _pattern("; SIZE total capacity")],
    "free_bytes": [_pattern("of which SIZE is free"), _pattern("; SIZE free")],
    "limit_bytes": [_pattern("SIZE allowed;")],
    "process_bytes": [_pattern("this process has SIZE memory in use")],
    "allocated_bytes": [_pattern("memory SIZE is allocated by PyTorch"), _pattern("; SIZE already allocated")],
    "private_pools_bytes": [_pattern("with SIZE allocated in private pools")],
    "unallocated_bytes": [_pattern("SIZE is reserved by PyTorch but unallocated"), _pattern("; SIZE cached")],
    "reserved_bytes": [_pattern("; SIZE reserved in total by PyTorch")],
}
PROCESS: Final = _pattern(r"Process (\d{1,12}) has SIZE memory in use")
DEVICE: Final = re.compile(r"(?:GPU|NPU|XPU|MLU)\s{1,40}(\d{1,4})\b")
WORKER: Final = re.compile(r"DataLoader worker (?:process |\(pid(?:\(s\))?:? )(\d{1,8})")
ASYNC: Final = {
    "allocated_bytes": _pattern("Currently allocated ?: SIZE"),
    "asked_bytes": _pattern("Requested ?: SIZE"),
    "total_bytes": _pattern("Device limit ?: SIZE"),
    "free_bytes": _pattern(r"Free \(according to CUDA\) ?: SIZE"),
    "limit_bytes": _pattern(r"PyTorch limit \(set by user-supplied memory fraction\) ?: SIZE"),
}
PREEMPTIVE: Final = _pattern("Requested size: SIZE")
MPS: Final = {
    "asked_bytes": _pattern("(?:Tried to allocate|Invalid buffer size:) SIZE"),
    "allocated_bytes": _pattern("MPS allocated: SIZE"),
    "process_bytes": _pattern("other allocations: SIZE"),
    "limit_bytes": _pattern("max allowed: SIZE"),
}
KILLED_PROCESS: Final = re.compile(r"(?:Kill(?:ed)? process|victim process: [^\n]{1,60}, pid:) (\d{1,12})")
KILLED_PROCESS_MEMORY: Final = re.compile(r"anon-rss:(\d{1,15})(kB)")
NODE_MEMORY: Final = re.compile(r"node was (\d{1,12}\.\d{1,4})(GB) / (\d{1,12}\.\d{1,4})(GB)")
OF_NO_DEVICE: Final = 1 << 50
"""No device has so much memory: drivers that do not know a process's memory report 2**64 - 1."""
EXABYTE: Final = "Tried to allocate more than 1EB memory"
"""PyTorch's words for a request that is too large to be a size."""
ASKED_ELSEWHERE: Final = (
    _pattern("(?:trying to allocate|failed to allocate|[Oo]ut of memory allocating) SIZE"),
    re.compile(r"Out of memory allocating (\d[\d,]{0,29}) (bytes)"),
    re.compile(r"requested buffer of size (\d{1,20})()"),
    _pattern(r"\(SIZE KV cache is needed"),
    _pattern("Failed to allocate request for SIZE"),
    _pattern(r"Out of memory error on GPU \d{1,4}\. Cannot allocate SIZE memory"),
    _pattern("buffer_type_alloc_buffer: allocating SIZE on device"),
    re.compile(r"Requested (?:size was|amount of GPU memory \() ?(\d{1,20}) (bytes)"),
    re.compile(r"smaller than requested bytes of (\d{1,20})()"),
    re.compile(r"failed to allocate \w{0,20} buffer of size (\d{1,20})()"),
)
HOST_ASKED: Final = (
    re.compile(r"[Yy]ou tried to allocate (\d{1,20}) ?(bytes|[KMGT]B)"),
    _pattern("Unable to allocate SIZE for an array"),
    re.compile(r"memory allocation of (\d{1,20}) (bytes) failed"),
    re.compile(r"ArrowMemoryError: (?:re|m)alloc of size (\d{1,20})()"),
)


class Numbers:
    """Amounts found in a text, and the error of each."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.rounding: dict[str, int] = {}

    def take(self, name: str, patterns: Iterable[re.Pattern[str]], text: str) -> None:
        for pattern in patterns:
            found = pattern.search(text)
            if found is not None:
                self.values[name], off = amount(found.group(1).replace(",", ""), found.group(2))
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
