"""The folder of one session, in which batches wait on disk: one small file for each batch.

    SPOOL_DIR/SESSION/session.json          the server they are for
                      attached.msgpack      the session's Attached message, for a server that does not know the session
                      lock                  locked (flock) by the one process that sends or writes here
                      000000000042-17.batch sequence and rows; a header with length and checksum, then the batch
                      refused/              batches that the server will never accept, for inspection

Nothing is created before the first batch has to wait. A file appears whole or not at all (temporary name, then rename). A
file cut short by a power failure is found by its checksum, ignored and counted. There is no fsync: a batch is not worth the
training's disk bandwidth.

"""

from __future__ import annotations

import fcntl
import os
import struct
import time
import zlib
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

HEADER: Final = struct.Struct("<4sII")  # magic, length and crc32 of what follows
MAGIC: Final = b"vsb1"
DISK_BLOCK_BYTES: Final = 4096
"""Block size of the disk. Small files take whole blocks: the limit applies to disk space, not to bytes written."""

MAX_REFUSED_FILES: Final = 16
SESSION: Final = "session.json"
ATTACHED: Final = "attached.msgpack"


class SpooledSession(msgspec.Struct, frozen=True, kw_only=True):
    """Content of session.json: the session, and the server its batches are for."""

    server: str
    session: str
    created_ns: int


class WaitingBatch(NamedTuple):
    """One waiting batch."""

    sequence: int
    rows: int
    disk_bytes: int


class SessionFolder:
    """The files of one session. Only the holder of the lock may change them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken_files = 0
        """Number of files that were cut short or changed, and removed."""
        self._lock: int | None = None

    def lock(self, *, create: bool = False) -> bool:
        """Lock the folder for this process. False: another process has it. Raises OSError if the disk refuses."""
        for _ in range(20):
            if create:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if create:
                    continue  # the empty folder was removed between the two calls
                return False
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = (self.path / "lock").stat().st_ino == os.fstat(lock).st_ino
            except FileNotFoundError:
                mine = False
            except BlockingIOError:
                os.close(lock)
                if create:
                    time.sleep(0.01)  # its own folder: another process only checks whether it is in use
                    continue
                return False
            except OSError:
                mine = (
                    True  # a file system without flock: two senders (the server drops duplicates) are better than none
                )
            if mine:
                self._lock = lock
                return True
            os.close(lock)
        return False

    def unlock(self) -> None:
        """Release the lock; in a forked child the parent's lock stays."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def batches(self) -> list[WaitingBatch]:
        """Return the waiting batches, oldest first; [] if the folder is gone."""
        found = []
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    sequence, _, rows = entry.name.removesuffix(".batch").partition("-")
                    if entry.name.endswith(".batch") and sequence.isdecimal() and rows.isdecimal():
                        found.append(WaitingBatch(int(sequence), int(rows), on_disk(entry.stat().st_size)))
        except OSError:
            return []
        return sorted(found)

    def disk_bytes(self) -> int:
        """Return the folder's size on disk, refused batches included."""
        total = 0
        for folder in (self.path, self.path / "refused"):
            try:
                with os.scandir(folder) as entries:
                    total += sum(on_disk(entry.stat(follow_symlinks=False).st_size) for entry in entries)
            except OSError:
                continue  # nothing was refused, or the folder was just removed
        return total

    def write(self, name: str, content: bytes) -> None:
        """Write a file so that it appears whole or not at all."""
        unfinished = self.path / f"{name}.tmp"
        try:
            descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                rest = memoryview(content)
                while rest:
                    rest = rest[file.write(rest) or 0 :]
            unfinished.replace(self.path / name)
        except OSError:
            self._unlink(unfinished)
            raise

    def write_batch(self, kept: WaitingBatch, body: bytes) -> None:
        """Write one batch."""
        self.write(_name(kept), HEADER.pack(MAGIC, len(body), zlib.crc32(body)) + body)

    def read_batch(self, kept: WaitingBatch) -> bytes | None:
        """Read a batch. None if the file is gone or was cut short; such a file is removed and counted."""
        path = self.path / _name(kept)
        try:
            content = path.read_bytes()
        except OSError:
            self.broken_files += 1
            return None
        body = content[HEADER.size :]
        if content[: HEADER.size] == HEADER.pack(MAGIC, len(body), zlib.crc32(body)):
            return body
        self.broken_files += 1
        self._unlink(path)
        return None

    def remove_batch(self, kept: WaitingBatch) -> None:
        """Remove a batch if it exists."""
        self._unlink(self.path / _name(kept))

    def set_aside(self, kept: WaitingBatch, body: bytes, reason: str) -> bool:
        """Move a batch to ``refused/``, with the reason in a file beside it. False: the folder is full, or the disk
        refuses."""
        refused = self.path / "refused"
        try:
            refused.mkdir(mode=0o700, exist_ok=True)
            if sum(1 for _ in refused.iterdir()) >= 2 * MAX_REFUSED_FILES:
                return False
            (refused / _name(kept)).write_bytes(body)
            (refused / f"{_name(kept)}.txt").write_text(reason + "\n", encoding="utf-8", errors="replace")
        except OSError:
            return False
        return True

    def read_session(self) -> SpooledSession | None:
        """Read session.json; None if it is missing or unreadable."""
        try:
            return msgspec.json.decode((self.path / SESSION).read_bytes(), type=SpooledSession)
        except (OSError, msgspec.MsgspecError):
            return None

    def tidy(self) -> None:
        """Remove the folder if no batch waits in it and none was refused. Only for the holder of the lock."""
        if (self.path / "refused").exists() or self.batches():
            return
        try:
            for path in list(self.path.iterdir()):
                if path.name != "lock":
                    self._unlink(path)
            self._unlink(self.path / "lock")
            self.path.rmdir()
        except OSError:
            return  # gone already, or not empty: a foreign file, a slow network file system

    @staticmethod
    def _unlink(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return  # a read-only or missing disk; the file can be ignored


def _name(kept: WaitingBatch) -> str:
    return f"{kept.sequence:012d}-{kept.rows}.batch"


def on_disk(size: int) -> int:
    """Return the disk space of a file with that many bytes."""
    return -(-max(size, 1) // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES


def session_folders(directory: Path) -> list[SessionFolder]:
    """Return all sessions in a spool folder, the oldest first; [] if there is no such folder."""
    try:
        with os.scandir(directory) as entries:
            paths = [directory / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    ages: list[tuple[int, Path]] = []
    for path in paths:
        read_session = SessionFolder(path).read_session()
        ages.append((read_session.created_ns if read_session else 0, path))
    return [SessionFolder(path) for _, path in sorted(ages)]
