"""Reads host memory: resident bytes of this process, and memory in use on the machine or in its container."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.memory.cgroup import ControlGroup
from vramscope.protocol.series import UNKNOWN

PINNED_EVERY_S: Final = 1.0
"""Minimum time between two readings of pinned memory."""


class HostMemory(NamedTuple):
    process_rss_bytes: int
    host_used_bytes: int


class Host:
    """Reads /proc. A reading takes about 40 µs. ``proc`` is a parameter so that tests can use other folders."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._statm = str(proc / "self" / "statm")
        self._status = proc / "self" / "status"
        self._meminfo = str(proc / "meminfo")
        self._vmstat = proc / "vmstat"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._group = ControlGroup(proc)
        machine, limit = self._meminfo_bytes(b"MemTotal:"), self._group.limit_bytes
        self._limited = limit is not None and (machine is None or limit < machine)
        self._total = limit if self._limited else machine
        self._kills_before = self._kills()

    def read(self) -> HostMemory:
        """Return both values; UNKNOWN if /proc does not have them (macOS, a restricted container)."""
        return HostMemory(self._rss(), self._used())

    def unfiled_bytes(self) -> int:
        """Return the resident bytes of this process that are not pages of a file: heaps, stacks, shared and pinned memory.

        UNKNOWN if Linux does not report them. Takes about 25 µs.
        """
        try:
            with self._status.open(errors="replace") as lines:
                sizes = [int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
        except (OSError, ValueError, IndexError):
            return UNKNOWN
        return sum(sizes) if sizes else UNKNOWN

    def total_bytes(self) -> int | None:
        """Total memory of the machine, or the container's limit if that is lower; None if neither is known."""
        return self._total

    def kills(self) -> int | None:
        """Return the number of processes that Linux has killed for lack of memory since this object was created.

        They are those of this container, or of the whole machine if the container's number is unknown. None if both are.
        """
        now = self._kills()
        return None if now is None or self._kills_before is None else now - self._kills_before

    def _kills(self) -> int | None:
        of_group = self._group.kills()
        if of_group is not None:
            return of_group
        try:
            lines = self._vmstat.read_text().splitlines()
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), None)
        except (OSError, ValueError, IndexError):
            return None

    def _rss(self) -> int:
        try:
            return int(_begin_of(self._statm).split()[1]) * self._page_bytes
        except (OSError, ValueError, IndexError):
            return UNKNOWN

    def _used(self) -> int:
        if self._limited:
            used = self._group.used_bytes()
            return UNKNOWN if used is None else used
        total, available = self._total, self._meminfo_bytes(b"MemAvailable:")
        return UNKNOWN if total is None or available is None else total - available

    def _meminfo_bytes(self, name: bytes) -> int | None:
        """Return a value of /proc/meminfo in bytes; None if it is missing."""
        try:
            text = _begin_of(self._meminfo)
            at = text.find(name)
            return int(text[at:].split(maxsplit=2)[1]) * 1024 if at >= 0 else None
        except (OSError, ValueError, IndexError):
            return None


def _begin_of(path: str) -> bytes:
    """Return the first 4 KiB of a file in /proc, in a fifth of the time of ``Path.read_text``."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)


def highest_resident_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Return the most memory that this process has had so far; None on a system that does not tell.

    ``getrusage`` is no way to it: Linux passes its figure on from the process that started this one.
    """
    try:
        with status.open(errors="replace") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None


class PinnedMemory(NamedTuple):
    """Page-locked host memory of PyTorch's allocator. UNKNOWN before PyTorch 2.8 and without CUDA."""

    pinned_bytes: int = UNKNOWN
    pinned_in_use_bytes: int = UNKNOWN


class PinnedMemoryReader:
    """Reads pinned memory once a second at most: each reading locks every size class of PyTorch's allocator."""

    def __init__(self) -> None:
        self._newest = PinnedMemory()
        self._read_from = 0.0

    def read(self) -> PinnedMemory:
        """Return the newest reading, at most PINNED_EVERY_S old. CUDA must be initialized."""
        now = time.monotonic()
        if now >= self._read_from:
            self._read_from = now + PINNED_EVERY_S
            self._newest = pinned_memory()
        return self._newest


def pinned_memory() -> PinnedMemory:
    """Read PyTorch's counters of pinned memory, in about 8 µs. CUDA must be initialized."""
    import torch

    read = getattr(torch._C, "_cuda_hostMemoryStats", None)
    if read is None:
        return PinnedMemory()
    stats = read()
    # Up to PyTorch 2.9 allocated_bytes is what tensors use, later it includes the cache.
    names = ("reserved_bytes", "allocated_bytes") if "reserved_bytes" in stats else ("allocated_bytes", "active_bytes")
    if not all(name in stats for name in names):
        return PinnedMemory()
    return PinnedMemory(*(stats[name]["current"] for name in names))
