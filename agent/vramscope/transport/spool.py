"""Batches that could not be sent: kept on disk up to a bound, or in memory where the disk takes nothing."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from vramscope.process import terminal
from vramscope.transport.spool_dir import (
    ATTACHED,
    HEADER,
    SESSION,
    SessionFolder,
    SpooledSession,
    WaitingBatch,
    on_disk,
    session_folders,
)

MIB: Final = 1024 * 1024
MAX_MEMORY_BYTES: Final = 16 * 1024 * 1024
"""What is kept in memory when the disk takes nothing."""

EVICT_INTERVAL_S: Final = 60.0
RETRY_DISK_S: Final = 30.0
"""A disk is full for as long as a checkpoint is being written, too."""

HANDED_SHARE: Final = 4
"""of the bound, the part that batches written at once may take before the thread that uses the spool has made room for them"""


class Spool:
    """What one session keeps until its server is back. Used by one thread at a time; touches no disk before it must.

    The bound is for the whole folder, all sessions together: those of finished processes make room first, then this
    session's own oldest batches. Every loss is counted, in batches and in rows.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.kept_batches = 0
        """ever kept here by this session"""
        self.dropped_batches = 0
        self.dropped_rows = 0
        self.set_aside_batches = 0
        self._folder: SessionFolder | None = None
        self._index: deque[WaitingBatch] = deque()
        self._memory: dict[int, bytes] = {}
        self._meant = SpooledSession(server="", session="unnamed", created_ns=0)
        self._attached = b""
        self._disk_bytes = 0
        self._memory_bytes = 0
        self._max_memory_bytes = min(max_bytes, MAX_MEMORY_BYTES)
        self._others_bytes = 0
        self._measure_at_bytes = 0
        self._evict_at_s = 0.0
        self._disk_works = True
        self._retry_disk_at_s = 0.0
        self._opening = threading.Lock()
        self._handed: deque[WaitingBatch] = deque()
        self._handing = threading.Lock()
        self._handed_bytes = 0

    def begin(self, *, session: str, server: str) -> None:
        """Say whose batches these are and where they should go. Before the first ``append``."""
        self._meant = SpooledSession(server=server, session=session, created_ns=time.time_ns())

    def introduce(self, attached: bytes) -> None:
        """The encoded Attached message, kept beside the batches for a server that never heard of the session."""
        if self._attached == attached:
            return
        self._attached = attached
        if self._folder is not None:
            try:
                self._folder.write(ATTACHED, attached)
            except OSError:
                return  # the first one is still there; the disk has its say at the next batch

    def __len__(self) -> int:
        return len(self._index)

    @property
    def held_bytes(self) -> int:
        """On disk and in memory, of this session."""
        return self._disk_bytes + self._memory_bytes

    @property
    def place(self) -> str:
        """Where batches go, for the person at the terminal."""
        if self._disk_works:
            return f"{self.directory} (up to {self.max_bytes // MIB} MiB)"
        return f"memory (up to {self._max_memory_bytes // MIB} MiB)"

    @property
    def batches_on_disk(self) -> int:
        """So many will outlive the process."""
        return len(self._index) - len(self._memory)

    def append(self, sequence: int, rows: int, body: bytes) -> None:
        """Keep one encoded batch as the newest. Never raises for the disk."""
        kept = WaitingBatch(sequence, rows, on_disk(HEADER.size + len(body)))
        self.kept_batches += 1
        if (self._disk_works or time.monotonic() >= self._retry_disk_at_s) and self._write(kept, body):
            self._index.append(kept)
            self._memory_to_disk()
            return
        while self._memory and self._memory_bytes + len(body) > self._max_memory_bytes:
            self._drop(next(kept for kept in self._index if kept.sequence in self._memory))
        if self._disk_works or len(body) > self._max_memory_bytes:
            self._count_dropped(kept)  # the disk works, but others fill the bound
            return
        self._memory[sequence] = body
        self._memory_bytes += len(body)
        self._index.append(kept)

    def keep_now(self, sequence: int, rows: int, body: bytes, attached: bytes) -> bool:
        """Write a batch to the disk at once, from any thread: what may be the process's last words.

        False: the disk refuses, or too much was written so that nobody has made room for yet. The thread that uses the spool
        takes it over with :meth:`take_over`; if the process dies first, ``sync`` finds it.
        """
        kept = WaitingBatch(sequence, rows, on_disk(HEADER.size + len(body)))
        with self._handing:
            if self._handed_bytes + kept.disk_bytes > self.max_bytes // HANDED_SHARE:
                return False
            self._handed_bytes += kept.disk_bytes
        try:
            folder = self._open_folder()
            if not self._attached:
                folder.write(ATTACHED, attached)
            folder.write_batch(kept, body)
        except OSError:
            with self._handing:
                self._handed_bytes -= kept.disk_bytes
            return False
        self._handed.append(kept)
        return True

    def take_over(self) -> None:
        """Batches that another thread has kept wait like all others from now on; where they are too much, older ones go."""
        fresh = [self._handed.popleft() for _ in range(len(self._handed))]
        if not fresh:
            return
        taken = sum(kept.disk_bytes for kept in fresh)
        self.kept_batches += len(fresh)
        self._disk_bytes += taken
        self._make_room(0)  # before they stand in the index: of all that waits they are told last, and matter most
        self._index.extend(fresh)
        with self._handing:
            self._handed_bytes -= taken

    def oldest(self) -> tuple[WaitingBatch, bytes] | None:
        """The batch to send next, or None. What cannot be read any more is counted as dropped."""
        while self._index:
            kept = self._index[0]
            body = self._memory.get(kept.sequence)
            if body is None and self._folder is not None:
                body = self._folder.read_batch(kept)
            if body is not None:
                return kept, body
            self._drop(kept)
        return None

    def remove(self, kept: WaitingBatch) -> None:
        """The batch is stored, or stands elsewhere."""
        self._index.remove(kept)
        body = self._memory.pop(kept.sequence, None)
        if body is not None:
            self._memory_bytes -= len(body)
        elif self._folder is not None:
            self._folder.remove_batch(kept)
            self._disk_bytes -= kept.disk_bytes

    def set_aside(self, sequence: int, rows: int, body: bytes, reason: str) -> None:
        """Keep a batch that the server will never take in ``refused/``, where nobody sends it from."""
        kept = WaitingBatch(sequence, rows, on_disk(len(body)))
        try:
            folder = self._open_folder()
        except OSError:
            folder = None
        if folder is not None and folder.set_aside(kept, body, reason):
            self.set_aside_batches += 1
            self._disk_bytes += kept.disk_bytes + on_disk(len(reason))
        else:
            self._count_dropped(kept)

    def close(self) -> None:
        """Give the disk a last chance for what is in memory, let go of the folder, and remove it where it is empty."""
        self.take_over()
        self._memory_to_disk()
        for kept in [kept for kept in self._index if kept.sequence in self._memory]:
            self._drop(kept)
        if self._folder is not None:
            self._folder.tidy()
            self._folder.unlock()
            self._folder = None

    def after_fork_in_child(self) -> None:
        """The child's copy: empty, without the parent's lock."""
        if self._folder is not None:
            self._folder.unlock()
        self.__init__(self.directory, self.max_bytes)  # type: ignore[misc]  # as new: nothing of the parent's is ours

    def earlier_sessions(self) -> int:
        """How many finished processes left batches here."""
        waiting = 0
        for folder in self._others():
            if folder.lock():
                waiting += bool(folder.batches())
                folder.unlock()
        return waiting

    def _write(self, kept: WaitingBatch, body: bytes) -> bool:
        try:
            folder = self._open_folder()
            if not self._make_room(kept.disk_bytes):
                return False
            folder.write_batch(kept, body)
        except OSError as fault:
            self._disk_works = False
            self._retry_disk_at_s = time.monotonic() + RETRY_DISK_S
            why = fault.strerror or type(fault).__name__
            terminal.say_once(
                "spool-disk", f"cannot write to {self.directory} ({why}); keeping samples in {self.place}"
            )
            return False
        self._disk_works = True
        self._disk_bytes += kept.disk_bytes
        return True

    def _memory_to_disk(self) -> None:
        """What a disk that refused takes now, in the order of the index; the rest stays in memory."""
        for kept in [kept for kept in self._index if kept.sequence in self._memory]:
            if self._write(kept, self._memory[kept.sequence]):
                self._memory_bytes -= len(self._memory.pop(kept.sequence))

    def _open_folder(self) -> SessionFolder:
        with self._opening:
            if self._folder is None:
                folder = SessionFolder(self.directory / self._meant.session)
                if not folder.lock(create=True):
                    raise BlockingIOError(0, "another process holds the folder of this session")
                try:
                    folder.write(SESSION, msgspec.json.encode(self._meant))
                    if self._attached:
                        folder.write(ATTACHED, self._attached)
                except OSError:
                    folder.unlock()  # batches beside no word of whose they are could be sent nowhere
                    raise
                self._folder = folder
                self._measure_others()
            return self._folder

    def _make_room(self, need_bytes: int) -> bool:
        """Drop the oldest until so much more fits. False: it cannot fit."""
        if self._disk_bytes >= self._measure_at_bytes:
            self._measure_others()
        if self._excess(need_bytes) > 0 and time.monotonic() >= self._evict_at_s:
            # A scan of the whole folder, so for more than this one batch; and where others had too little to give, not
            # again for a while.
            enough = self._evict_others(self._excess(need_bytes) + self.max_bytes // 16)
            self._evict_at_s = 0.0 if enough else time.monotonic() + EVICT_INTERVAL_S
        while self._excess(need_bytes) > 0:
            oldest = next((kept for kept in self._index if kept.sequence not in self._memory), None)
            if oldest is None:
                return False
            self._drop(oldest)
        return True

    def _excess(self, need_bytes: int) -> int:
        return self._disk_bytes + self._others_bytes + need_bytes - self.max_bytes

    def _others(self) -> list[SessionFolder]:
        return [folder for folder in session_folders(self.directory) if folder.path.name != self._meant.session]

    def _measure_others(self) -> None:
        self._others_bytes = sum(folder.disk_bytes() for folder in self._others())
        self._measure_at_bytes = self._disk_bytes + self.max_bytes // 16

    def _evict_others(self, excess_bytes: int) -> bool:
        """Remove so much of finished sessions, the oldest first. False: they had less."""
        removed = 0
        for folder in self._others():
            if excess_bytes <= 0:
                break
            if not folder.lock():
                continue  # its process lives
            for kept in folder.batches():
                if excess_bytes > 0:
                    folder.remove_batch(kept)
                    excess_bytes -= kept.disk_bytes
                    removed += 1
            folder.tidy()
            folder.unlock()
        self._measure_others()
        if removed:
            terminal.say_once(
                "spool-evicted", f"{self.directory} is full: the oldest {removed} batches of earlier runs were removed"
            )
        return excess_bytes <= 0

    def _drop(self, kept: WaitingBatch) -> None:
        self.remove(kept)
        self._count_dropped(kept)

    def _count_dropped(self, kept: WaitingBatch) -> None:
        self.dropped_batches += 1
        self.dropped_rows += kept.rows
