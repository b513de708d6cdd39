"""Reads the host's memory: this process's resident bytes, and what the machine has in use (Linux /proc)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from vramscope.wire import UNKNOWN


class HostMemory(NamedTuple):
    process_rss_bytes: int
    host_used_bytes: int


class Host:
    """About 40 µs a reading. ``proc`` is a parameter so that tests can hand in other machines."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._statm = proc / "self" / "statm"
        self._meminfo = proc / "meminfo"
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")

    def read(self) -> HostMemory:
        """UNKNOWN where /proc does not tell (macOS, a locked-down container)."""
        return HostMemory(self._rss(), self._used())

    def _rss(self) -> int:
        try:
            return int(self._statm.read_text().split()[1]) * self._page_bytes
        except (OSError, ValueError, IndexError):
            return UNKNOWN

    def _used(self) -> int:
        total = available = None
        try:
            for line in self._meminfo.read_text().splitlines():
                if line.startswith("MemTotal:"):
                    total = int(line.split()[1]) * 1024
                elif line.startswith("MemAvailable:"):
                    available = int(line.split()[1]) * 1024
                    break
        except (OSError, ValueError, IndexError):
            return UNKNOWN
        return UNKNOWN if total is None or available is None else total - available
