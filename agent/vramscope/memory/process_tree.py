"""Reads the host memory of this process and of its child processes, DataLoader workers among them, without counting a page twice.

The three parts add up: anonymous memory of this process, private memory of each child process, and shared memory. Memory that a
forked child still shares with its parent belongs to the parent. Source: docs.kernel.org/filesystems/proc.html.
"""

from __future__ import annotations

import os
import re
import threading
import time
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.guard import guarded
from vramscope.protocol.series import UNKNOWN

READ_EVERY_S: Final = 2.0
"""Minimum time between two readings."""
MOST_SHARE: Final = 0.0025
"""Maximum share of a core for readings that measure each child, and for those that do not. Linux walks all pages of a child to
measure it, which takes 10 to 50 ms for 1 GiB."""
_SHARED: Final = ("/dev/shm/", "/memfd:", "/dev/zero (deleted)", "/SYSV")
"""What links to files in shared memory begin with."""
_BY_TORCH: Final = re.compile(r"torch_(\d+)_")
"""File in shared memory by PyTorch's strategy ``file_system``, which keeps no descriptor. Its name has the process that made it."""


class TreeMemory(NamedTuple):
    """Host memory of this process and its children. UNKNOWN if Linux does not report it."""

    process_anonymous_bytes: int = UNKNOWN
    child_processes: int = UNKNOWN
    child_processes_bytes: int = UNKNOWN
    largest_child_bytes: int = UNKNOWN
    shared_memory_bytes: int = UNKNOWN


class ProcessTree:
    """Reads a process and all that it has started. The parameters are there so that tests can use other folders."""

    def __init__(self, proc: Path = Path("/proc"), shm: Path = Path("/dev/shm")) -> None:
        self._proc, self._shm = proc, shm
        self._private: dict[int, int | None] = {}
        """Memory of each child process when it was last measured; None if it is not known."""
        self._ended: set[int] = set()
        """Child processes that had ended then, and for which their parent had not waited."""

    def read(self, pid: int, *, measures: bool = True) -> TreeMemory:
        """Return the parts. A part is UNKNOWN if it is not known for each process of the tree.

        measures   False: each child has the memory that it had when it was last measured. One that is new has none yet.
        """
        children = self._descendants(pid)
        anonymous = self._sizes(self._proc / f"{pid}/status").get("RssAnon", UNKNOWN)
        if children is None:
            return TreeMemory(anonymous)
        if measures:
            self._measure(children)
        running = [child for child in children if child not in self._ended]
        sizes = [size for child in running if (size := self._private.get(child)) is not None]
        shared = self._shared_bytes([pid, *children])
        if len(sizes) < len(running):
            return TreeMemory(anonymous, len(running), shared_memory_bytes=shared)
        return TreeMemory(anonymous, len(sizes), sum(sizes), max(sizes, default=UNKNOWN), shared)

    def _measure(self, children: list[int]) -> None:
        self._private.clear()
        self._ended.clear()
        for child in children:
            try:
                self._private[child] = self._private_bytes(child)
            except (FileNotFoundError, ProcessLookupError):
                self._ended.add(child)
            except OSError:
                self._private[child] = None

    def _descendants(self, pid: int) -> list[int] | None:
        """Return all child processes and theirs; None if the kernel does not list them."""
        found, queue = [], [pid]
        while queue:
            parent = queue.pop()
            try:
                for thread in (self._proc / f"{parent}/task").iterdir():
                    children = [int(child) for child in (thread / "children").read_text().split()]
                    found += children
                    queue += children
            except (FileNotFoundError, ProcessLookupError):
                if parent == pid and not (self._proc / f"{pid}/task/{pid}/children").exists():
                    return None
            except (OSError, ValueError):
                return None
        return found

    def _private_bytes(self, pid: int) -> int | None:
        """Return the anonymous memory that only this process has; None if Linux does not report it (before 5.4)."""
        sizes = self._sizes(self._proc / f"{pid}/smaps_rollup", strict=True)
        if not sizes:
            raise ProcessLookupError(pid)  # a process that has ended and was not waited for
        if not {"Anonymous", "Pss_Anon", "Pss_Shmem", "Private_Dirty"} <= sizes.keys():
            return None
        if sizes["Pss_Anon"] == sizes["Anonymous"]:
            return sizes["Anonymous"]
        # The kernel has no sum of private anonymous pages: private pages in shared memory are part of Private_Dirty.
        return max(0, min(sizes["Pss_Anon"], sizes["Private_Dirty"] - sizes["Pss_Shmem"]))

    def _shared_bytes(self, pids: list[int]) -> int:
        """Return the size of all files in shared memory that these processes have open, each counted once."""
        files: dict[tuple[int, int], int] = {}
        for pid in pids:
            try:
                _add_open_files(self._proc / f"{pid}/fd", files)
            except (FileNotFoundError, ProcessLookupError):
                continue
            except OSError:
                return UNKNOWN
        try:
            named = [file for file in self._shm.iterdir() if (by := _BY_TORCH.match(file.name)) and int(by[1]) in pids]
        except OSError:
            named = []
        for file in named:
            _add_file(file, files)
        return sum(files.values())

    def _sizes(self, file: Path, *, strict: bool = False) -> dict[str, int]:
        """Return the entries in kB of a file in /proc, in bytes."""
        try:
            lines = file.read_text(errors="replace").splitlines()  # a process name may be cut within a character
        except OSError:
            if strict:
                raise
            return {}
        words = [line.split() for line in lines if line.endswith(" kB")]
        return {word[0].rstrip(":"): int(word[1]) * 1024 for word in words if len(word) == 3}


def _add_open_files(folder: Path, files: dict[tuple[int, int], int]) -> None:
    """Add the files in shared memory that a process has open. Other files are not asked: a network may be slow to answer."""
    for path in folder.iterdir():
        try:
            target = os.fspath(path.readlink())
        except FileNotFoundError:
            continue  # closed in the meantime
        if target.startswith(_SHARED):
            _add_file(path, files)


def _add_file(path: Path, files: dict[tuple[int, int], int]) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    files[status.st_dev, status.st_ino] = status.st_blocks * 512


class TreeMemoryReader:
    """Reads the tree of this process on a thread of its own, because a reading of large workers takes long.

    newest        the newest reading
    cpu_seconds   processor time of the thread until the end of that reading
    """

    def __init__(self, tree: ProcessTree | None = None) -> None:
        self.newest = TreeMemory()
        self.cpu_seconds = 0.0
        self._tree = tree or ProcessTree()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-host-memory", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread. A reading that has begun ends by itself."""
        self._stop.set()

    @guarded("host memory of child processes", default=TreeMemory())
    def _read(self, measures: bool) -> TreeMemory:
        return self._tree.read(os.getpid(), measures=measures)

    @guarded("the thread for host memory of child processes")
    def _run(self) -> None:
        pause = measure_from = 0.0
        while not self._stop.wait(pause):
            measures = time.monotonic() >= measure_from
            self.newest = self._read(measures)
            before, self.cpu_seconds = self.cpu_seconds, time.thread_time()
            rest = (self.cpu_seconds - before) / MOST_SHARE
            pause = READ_EVERY_S if measures else max(READ_EVERY_S, rest)
            measure_from = time.monotonic() + rest if measures else measure_from
