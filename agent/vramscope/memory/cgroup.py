"""The control group that limits this process's host memory (Docker, Kubernetes, Slurm, systemd), version 1 or 2.

Where there is one, its limit is what kills, not the end of the machine's memory. Linux's own description:
docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/memory.html.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

STAT_EVERY_S: Final = 1.0
"""memory.stat costs up to milliseconds on a machine with many groups, the counter beside it 10 µs"""


class _Words(NamedTuple):
    """What a version calls its files, and the lines in them."""

    limit: str
    used: str
    files: tuple[str, str]
    """Entries of memory.stat that count file pages, which Linux reclaims before it kills."""
    kills: str
    """File with a line ``oom_kill``."""


_WORDS: Final = {
    1: _Words("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"), "memory.oom_control"),
    2: _Words("memory.max", "memory.current", ("inactive_file", "active_file"), "memory.events"),
}  # fmt: skip


class ControlGroup:
    """Found once; a limit that is changed later is not seen.

    limit_bytes   the smallest limit of this process's group and those above it; None: none is set, or none can be read
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.limit_bytes: int | None = None
        self._own = self._bound = next(iter(_groups(proc)), None)
        for group in _groups(proc):
            limit = _number(group.folder / _WORDS[group.version].limit)
            if limit is not None and (self.limit_bytes is None or limit < self.limit_bytes):
                self.limit_bytes, self._bound = limit, group
        self._files_bytes, self._files_from = 0, 0.0

    def used_bytes(self) -> int | None:
        """Bytes that count against the limit, without reclaimable file pages. Costs 10 µs; None: unknown."""
        if self._bound is None:
            return None
        folder, words = self._bound.folder, _WORDS[self._bound.version]
        used = _number(folder / words.used)
        if used is None:
            return None
        now = time.monotonic()
        if now >= self._files_from:
            self._files_from = now + STAT_EVERY_S
            statistics = _lines(folder / "memory.stat")
            self._files_bytes = sum(statistics.get(name, 0) for name in words.files)
        return max(0, used - self._files_bytes)

    def kills(self) -> int | None:
        """Number of processes of this group that Linux has killed for lack of memory; None: unknown (the root group)."""
        if self._own is None:
            return None
        return _lines(self._own.folder / _WORDS[self._own.version].kills).get("oom_kill")


class _Group(NamedTuple):
    folder: Path
    version: int


def _groups(proc: Path) -> Iterator[_Group]:
    """The group of this process, and its parents as far as they are visible."""
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
        # In a container the path may be the host's, and what is mounted here is that very group.
        below = Path(path).relative_to(root) if Path(path).is_relative_to(root) else Path()
        folder = top / below
        if not (folder / _WORDS[version].used).exists():
            continue  # version 2 beside version 1, which has the memory (or the root of version 2, which has no limit)
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
    """None for ``max``, and for a file that is not there. (Version 1 says a number beyond any machine for no limit.)"""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _lines(path: Path) -> dict[str, int]:
    """``name number`` a line."""
    try:
        pairs = [line.split() for line in path.read_text().splitlines()]
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except (OSError, ValueError):
        return {}
