"""The folder of one session, in which batches wait on disk: one small file for each batch.

    SPOOL_DIR/SESSION/session.json          which server they are for
                      attached.msgpack      who the session is, should the server never have heard of it
                      lock                  held (flock) by the one process that sends or writes here
                      000000000042-17.batch sequence and rows; a header with length and checksum, then the batch
                      refused/              batches that the server will never take, for somebody to look at

Nothing is created before the first batch has to wait. A file appears whole or not at all (temporary name, then rename);
what a power failure cut short is found by its checksum, ignored and counted. No fsync: a batch is worth less than the
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
"""Small files take whole blocks: the bound is on what the disk loses, not on what we wrote."""

MAX_REFUSED_FILES: Final = 16
SESSION: Final = "session.json"
ATTACHED: Final = "attached.msgpack"


class SpooledSession(msgspec.Struct, frozen=True, kw_only=True):
    """session.json: whose batches these are, and for which server."""

    server: str
    session: str
    created_ns: int


class WaitingBatch(NamedTuple):
    """One waiting batch."""

    sequence: int
    rows: int
    disk_bytes: int


class SessionFolder:
    """The files of one session. Whoever changes them must hold the lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.broken_files = 0
        """found cut short or changed, and removed"""
        self._lock: int | None = None

    def lock(self, *, create: bool = False) -> bool:
        """Take the folder for this process. False: another one has it. Raises OSError where the disk refuses."""
        for _ in range(20):
            if create:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if create:
                    continue  # somebody tidied the empty folder away between the two calls
                return False
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = (self.path / "lock").stat().st_ino == os.fstat(lock).st_ino
            except FileNotFoundError:
                mine = False
            except BlockingIOError:
                os.close(lock)
                if create:
                    time.sleep(0.01)  # a session's own folder: somebody only looked whether it has an owner
                    continue
                return False
            except OSError:
                mine = True  # a file system without flock: better two senders (the server knows twins) than none
            if mine:
                self._lock = lock
                return True
            os.close(lock)
        return False

    def unlock(self) -> None:
        """Let go; in a forked child this leaves the parent's lock in place."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def batches(self) -> list[WaitingBatch]:
        """What waits here, oldest first; nothing where the folder is gone."""
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
        """What the folder takes on disk, what was set aside included."""
        total = 0
        for folder in (self.path, self.path / "refused"):
            try:
                with os.scandir(folder) as entries:
                    total += sum(on_disk(entry.stat(follow_symlinks=False).st_size) for entry in entries)
            except OSError:
                continue  # nothing set aside, or just sent and tidied away
        return total

    def write(self, name: str, content: bytes) -> None:
        """A file that appears whole or not at all."""
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
        """Keep one batch."""
        self.write(_name(kept), HEADER.pack(MAGIC, len(body), zlib.crc32(body)) + body)

    def read_batch(self, kept: WaitingBatch) -> bytes | None:
        """The batch, or None where the file is gone or was cut short; such a file is removed and counted."""
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
        """Forget one batch; it need not be there."""
        self._unlink(self.path / _name(kept))

    def set_aside(self, kept: WaitingBatch, body: bytes, reason: str) -> bool:
        """Put a batch where nobody sends it from, its reason beside it. False: enough lie there already, or no disk."""
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

    def meant(self) -> SpooledSession | None:
        """Which server these are for, or None where the file is missing or unreadable."""
        try:
            return msgspec.json.decode((self.path / SESSION).read_bytes(), type=SpooledSession)
        except (OSError, msgspec.MsgspecError):
            return None

    def tidy(self) -> None:
        """Remove the folder if no batch waits in it and none was set aside. Only for the holder of the lock."""
        if (self.path / "refused").exists() or self.batches():
            return
        try:
            for path in list(self.path.iterdir()):
                if path.name != "lock":
                    self._unlink(path)
            self._unlink(self.path / "lock")
            self.path.rmdir()
        except OSError:
            return  # gone already, or not empty: a file of somebody else's, a network file system that is late

    @staticmethod
    def _unlink(path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            return  # a read-only or vanished disk; the file is ours to ignore


def _name(kept: WaitingBatch) -> str:
    return f"{kept.sequence:012d}-{kept.rows}.batch"


def on_disk(size: int) -> int:
    """Bytes that a file of that size takes."""
    return -(-max(size, 1) // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES


def session_folders(directory: Path) -> list[SessionFolder]:
    """All sessions in a spool folder, the oldest first; empty where there is no such folder."""
    try:
        with os.scandir(directory) as entries:
            paths = [directory / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    ages: list[tuple[int, Path]] = []
    for path in paths:
        meant = SessionFolder(path).meant()
        ages.append((meant.created_ns if meant else 0, path))
    return [SessionFolder(path) for _, path in sorted(ages)]
