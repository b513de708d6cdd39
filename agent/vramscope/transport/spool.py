"""Batches that could not be sent: kept on disk up to a limit, or in memory if the disk refuses."""

from __future__ import annotations

import threading
import time
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from vramscope.process import terminal
from vramscope.protocol.number_format import amount
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
"""Maximum size of batches in memory while the disk refuses."""

EVICT_INTERVAL_S: Final = 60.0
RETRY_DISK_S: Final = 30.0
"""Time after which a disk that refused is tried again: it may be full only while a checkpoint is written."""

URGENT_SHARE: Final = 4
"""Part of the limit, as a divisor, for batches of keep_now that the spool's own thread has not taken over yet."""


class Spool:
    """Keeps the batches of one session until its server is back. Used by one thread at a time; touches no disk before it
    must.

    The limit applies to the whole folder, all sessions together. Those of finished processes are removed first, then this
    session's own oldest batches. Every loss is counted, in batches and in rows.

    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self.directory = directory
        self.max_bytes = max_bytes
        self.kept_batches = 0
        """Number of batches that this session ever kept here."""
        self.dropped_batches = 0
        self.dropped_rows = 0
        self.set_aside_batches = 0
        self._folder: SessionFolder | None = None
        self._index: deque[WaitingBatch] = deque()
        self._memory: dict[int, bytes] = {}
        self._session = SpooledSession(server="", session="unnamed", created_ns=0)
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
        self._urgent: deque[WaitingBatch] = deque()
        self._urgent_lock = threading.Lock()
        self._urgent_bytes = 0

    def begin(self, *, session: str, server: str) -> None:
        """Set the session and its server. Must be called before the first ``append``."""
        self._session = SpooledSession(server=server, session=session, created_ns=time.time_ns())

    def introduce(self, attached: bytes) -> None:
        """Keep the encoded Attached message beside the batches, for a server that does not know the session."""
        if self._attached == attached:
            return
        self._attached = attached
        if self._folder is not None:
            try:
                self._folder.write(ATTACHED, attached)
            except OSError:
                return  # the first one is still there; the next batch reports the disk

    def __len__(self) -> int:
        return len(self._index)

    @property
    def kept_bytes(self) -> int:
        """Size of this session's batches, on disk and in memory."""
        return self._disk_bytes + self._memory_bytes

    @property
    def location(self) -> str:
        """Description of where batches go, for the user."""
        if self._disk_works:
            return f"{self.directory} (up to {amount(self.max_bytes)})"
        return f"memory (up to {amount(self._max_memory_bytes)})"

    @property
    def batches_on_disk(self) -> int:
        """Number of batches that outlive the process."""
        return len(self._index) - len(self._memory)

    def append(self, sequence: int, rows: int, body: bytes) -> None:
        """Keep one encoded batch as the newest. Never raises for the disk."""
        batch = WaitingBatch(sequence, rows, on_disk(HEADER.size + len(body)))
        self.kept_batches += 1
        if (self._disk_works or time.monotonic() >= self._retry_disk_at_s) and self._write(batch, body):
            self._index.append(batch)
            self._memory_to_disk()
            return
        while self._memory and self._memory_bytes + len(body) > self._max_memory_bytes:
            self._drop(next(batch for batch in self._index if batch.sequence in self._memory))
        if self._disk_works or len(body) > self._max_memory_bytes:
            self._count_dropped(batch)  # the disk works, but other sessions fill the limit
            return
        self._memory[sequence] = body
        self._memory_bytes += len(body)
        self._index.append(batch)

    def keep_now(self, sequence: int, rows: int, body: bytes, attached: bytes) -> bool:
        """Write a batch to the disk at once, from any thread, because the process may be about to die.

        Returns False if the disk refuses, or if too much was written that the spool's thread has not taken over yet
        (:meth:`take_over`). If the process dies first, ``sync`` finds the batch.

        """
        batch = WaitingBatch(sequence, rows, on_disk(HEADER.size + len(body)))
        with self._urgent_lock:
            if self._urgent_bytes + batch.disk_bytes > self.max_bytes // URGENT_SHARE:
                return False
            self._urgent_bytes += batch.disk_bytes
        try:
            folder = self._open_folder()
            if not self._attached:
                folder.write(ATTACHED, attached)
            folder.write_batch(batch, body)
        except OSError:
            with self._urgent_lock:
                self._urgent_bytes -= batch.disk_bytes
            return False
        self._urgent.append(batch)
        return True

    def take_over(self) -> None:
        """Add batches that other threads have kept; if they exceed the limit, older ones are dropped."""
        fresh = [self._urgent.popleft() for _ in range(len(self._urgent))]
        if not fresh:
            return
        taken = sum(batch.disk_bytes for batch in fresh)
        self.kept_batches += len(fresh)
        self._disk_bytes += taken
        self._make_room(0)  # before they are in the index: they are the newest, and matter most
        self._index.extend(fresh)
        with self._urgent_lock:
            self._urgent_bytes -= taken

    def oldest(self) -> tuple[WaitingBatch, bytes] | None:
        """Return the batch to send next, or None. A batch that cannot be read any more is counted as dropped."""
        while self._index:
            batch = self._index[0]
            body = self._memory.get(batch.sequence)
            if body is None and self._folder is not None:
                body = self._folder.read_batch(batch)
            if body is not None:
                return batch, body
            self._drop(batch)
        return None

    def remove(self, batch: WaitingBatch) -> None:
        """Remove a batch that is stored, or kept elsewhere."""
        self._index.remove(batch)
        body = self._memory.pop(batch.sequence, None)
        if body is not None:
            self._memory_bytes -= len(body)
        elif self._folder is not None:
            self._folder.remove_batch(batch)
            self._disk_bytes -= batch.disk_bytes

    def set_aside(self, sequence: int, rows: int, body: bytes, reason: str) -> None:
        """Move a batch that the server will never accept to ``refused/``, from where it is not sent."""
        batch = WaitingBatch(sequence, rows, on_disk(len(body)))
        try:
            folder = self._open_folder()
        except OSError:
            folder = None
        if folder is not None and folder.set_aside(batch, body, reason):
            self.set_aside_batches += 1
            self._disk_bytes += batch.disk_bytes + on_disk(len(reason))
        else:
            self._count_dropped(batch)

    def close(self) -> None:
        """Write batches from memory to disk if possible, unlock the folder, and remove it if it is empty."""
        self.take_over()
        self._memory_to_disk()
        for batch in [batch for batch in self._index if batch.sequence in self._memory]:
            self._drop(batch)
        if self._folder is not None:
            self._folder.tidy()
            self._folder.unlock()
            self._folder = None

    def after_fork_in_child(self) -> None:
        """Make the child's copy empty, without the parent's lock."""
        if self._folder is not None:
            self._folder.unlock()
        self.__init__(self.directory, self.max_bytes)  # type: ignore[misc]  # as new: nothing of the parent's belongs to the child

    def earlier_sessions(self) -> int:
        """Return the number of finished processes that left batches here."""
        waiting = 0
        for folder in self._others():
            if folder.lock():
                waiting += bool(folder.batches())
                folder.unlock()
        return waiting

    def _write(self, batch: WaitingBatch, body: bytes) -> bool:
        try:
            folder = self._open_folder()
            if not self._make_room(batch.disk_bytes):
                return False
            folder.write_batch(batch, body)
        except OSError as fault:
            self._disk_works = False
            self._retry_disk_at_s = time.monotonic() + RETRY_DISK_S
            why = fault.strerror or type(fault).__name__
            terminal.say_once(
                "spool-disk", f"cannot write to {self.directory} ({why}); keeping samples in {self.location}"
            )
            return False
        self._disk_works = True
        self._disk_bytes += batch.disk_bytes
        return True

    def _memory_to_disk(self) -> None:
        """Write batches from memory to disk, in the order of the index; what the disk refuses stays in memory."""
        for batch in [batch for batch in self._index if batch.sequence in self._memory]:
            if self._write(batch, self._memory[batch.sequence]):
                self._memory_bytes -= len(self._memory.pop(batch.sequence))

    def _open_folder(self) -> SessionFolder:
        with self._opening:
            if self._folder is None:
                folder = SessionFolder(self.directory / self._session.session)
                if not folder.lock(create=True):
                    raise BlockingIOError(0, "another process has locked the folder of this session")
                try:
                    folder.write(SESSION, msgspec.json.encode(self._session))
                    if self._attached:
                        folder.write(ATTACHED, self._attached)
                except OSError:
                    folder.unlock()  # without session.json the batches could not be sent
                    raise
                self._folder = folder
                self._measure_others()
            return self._folder

    def _make_room(self, need_bytes: int) -> bool:
        """Drop the oldest batches until ``need_bytes`` more fit. False: they cannot fit."""
        if self._disk_bytes >= self._measure_at_bytes:
            self._measure_others()
        if self._excess(need_bytes) > 0 and time.monotonic() >= self._evict_at_s:
            # Scans the whole folder, so free more than this batch needs. If the others had too little, wait before the
            # next scan.
            enough = self._evict_others(self._excess(need_bytes) + self.max_bytes // 16)
            self._evict_at_s = 0.0 if enough else time.monotonic() + EVICT_INTERVAL_S
        while self._excess(need_bytes) > 0:
            oldest = next((batch for batch in self._index if batch.sequence not in self._memory), None)
            if oldest is None:
                return False
            self._drop(oldest)
        return True

    def _excess(self, need_bytes: int) -> int:
        return self._disk_bytes + self._others_bytes + need_bytes - self.max_bytes

    def _others(self) -> list[SessionFolder]:
        return [folder for folder in session_folders(self.directory) if folder.path.name != self._session.session]

    def _measure_others(self) -> None:
        self._others_bytes = sum(folder.disk_bytes() for folder in self._others())
        self._measure_at_bytes = self._disk_bytes + self.max_bytes // 16

    def _evict_others(self, excess_bytes: int) -> bool:
        """Remove that many bytes of finished sessions, the oldest first. False: they had less."""
        removed = 0
        for folder in self._others():
            if excess_bytes <= 0:
                break
            if not folder.lock():
                continue  # its process is running
            for batch in folder.batches():
                if excess_bytes > 0:
                    folder.remove_batch(batch)
                    excess_bytes -= batch.disk_bytes
                    removed += 1
            folder.tidy()
            folder.unlock()
        self._measure_others()
        if removed:
            terminal.say_once(
                "spool-evicted", f"{self.directory} is full: removed the {removed} oldest batches of earlier runs"
            )
        return excess_bytes <= 0

    def _drop(self, batch: WaitingBatch) -> None:
        self.remove(batch)
        self._count_dropped(batch)

    def _count_dropped(self, batch: WaitingBatch) -> None:
        self.dropped_batches += 1
        self.dropped_rows += batch.rows
