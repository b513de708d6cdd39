"""Reads the control group that limits this process's host memory (Docker, Kubernetes, Slurm, systemd), version 1 or 2.

Linux kills a process of the group when the group's limit is reached, even if the machine has free memory. Source:
docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

STAT_EVERY_S: Final = 1.0
"""Time between two readings of memory.stat, which takes up to milliseconds on a machine with many groups. The counter of used
bytes takes 10 µs."""


class _Files(NamedTuple):
    """Names of a version's files, and of entries in them."""

    limit: str
    used: str
    files: tuple[str, str]
    """Entries of memory.stat that count file pages, which Linux reclaims before it kills."""
    kills: str
    """File with a line ``oom_kill``."""


_FILES: Final = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"), "memory.oom_control"),
    2: _Files("memory.max", "memory.current", ("inactive_file", "active_file"), "memory.events"),
}  # fmt: skip


class ControlGroup:
    """The group of this process. It is searched for once, so later changes of its limit have no effect.

    limit_bytes   lowest limit of this process's group and its parents; None if none is set or readable
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.limit_bytes: int | None = None
        self._own = self._bound = next(iter(_groups(proc)), None)
        for group in _groups(proc):
            limit = _number(group.folder / _FILES[group.version].limit)
            if limit is not None and (self.limit_bytes is None or limit < self.limit_bytes):
                self.limit_bytes, self._bound = limit, group
        self._files_bytes, self._files_from = 0, 0.0

    def used_bytes(self) -> int | None:
        """Return the bytes that count against the limit, without reclaimable file pages; None if unknown. Takes 10 µs."""
        if self._bound is None:
            return None
        folder, names = self._bound.folder, _FILES[self._bound.version]
        used = _number(folder / names.used)
        if used is None:
            return None
        now = time.monotonic()
        if now >= self._files_from:
            self._files_from = now + STAT_EVERY_S
            statistics = _lines(folder / "memory.stat")
            self._files_bytes = sum(statistics.get(name, 0) for name in names.files)
        return max(0, used - self._files_bytes)

    def kills(self) -> int | None:
        """Return the number of processes of this group that Linux has killed for lack of memory; None if unknown."""
        if self._own is None:
            return None
        return _lines(self._own.folder / _FILES[self._own.version].kills).get("oom_kill")


class _Group(NamedTuple):
    folder: Path
    version: int


def _groups(proc: Path) -> Iterator[_Group]:
    """Yield the group of this process, then its visible parents."""
    try:
        joined = [line.split(":", 2) for line in (proc / "self" / "cgroup").read_text().splitlines()]
        mounted = (proc / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return
    for line in mounted:
        before, _, after = line.partition(" - ")
        place, kind = before.split(), after.split()
        if len(place) < 5 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind[0] == "cgroup2" else 1
        if version == 1 and "memory" not in kind[2].split(","):
            continue
        path = next((one[2] for one in joined if _is_of(one, version)), None)
        if path is None:
            continue
        root, top = Path(place[3]), Path(place[4])
        # In a container the path may be that of the host. The mounted folder is then this group itself.
        below = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
        folder = top / below
        if not (folder / _FILES[version].used).exists():
            continue  # version 2 without a memory controller, because version 1 has it; or the root, which has no limit
        while True:
            yield _Group(folder, version)
            if folder in (top, folder.parent):
                return
            folder = folder.parent


def _is_of(joined: list[str], version: int) -> bool:
    if len(joined) < 3:
        return False
    return joined[0] == "0" and not joined[1] if version == 2 else "memory" in joined[1].split(",")


def _number(path: Path) -> int | None:
    """Return the number in a file; None for ``max`` and for a missing file. Without a limit, version 1 has a huge number."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _lines(path: Path) -> dict[str, int]:
    """Return the numbers in a file with lines of the form ``name number``."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}
