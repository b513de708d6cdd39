"""Snapshot files: received, converted to columns by a separate process, and opened.

An uploaded file is under ``incoming`` until it is complete, or under ``uploading`` if it comes in parts (uploads.py). Then it
waits; each server process converts one at a time (conversions.py). Its columns become
a folder ``<id>``, under ``making`` first, so that a folder is always complete. Only server processes write here; those of
one database need the same folder. What a process had under ``incoming`` and ``making`` when it ended was cut off, and is
deleted at the next start of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Connection

from vramscope_server.analysis.snapshot_format.device_facts import DeviceFacts
from vramscope_server.conversions import Conversions, owner_of, waiting_file
from vramscope_server.snapshot_conversion import STACKS
from vramscope_server.store.audit_log import Note
from vramscope_server.store.database import Database
from vramscope_server.store.processes import is_shared, living
from vramscope_server.store.snapshots import (
    StoredSnapshot,
    delete_snapshot,
    find_snapshot,
    insert_unless_known,
    list_snapshots,
    place_of,
)
from vramscope_server.store.writer import Writer
from vramscope_server.uploads import Incomplete, Uploads

log = logging.getLogger("vramscope_server.snapshots")
T = TypeVar("T")

MAX_FILE_BYTES: Final = 16 << 30
ABANDONED_SECONDS: Final = 600.0
"""Age of the newest bytes of a file that a process which looks ended did not complete, until it is deleted."""
_WAIT_SECONDS: Final = 30
_SPARE_BYTES: Final = 64 << 20
"""Bytes that must stay free on the disk."""


class DiskFull(Exception):
    """Too little space on the disk. The message says how much is free."""


@dataclass(eq=False)
class Upload:
    """A file that is received as one body. Written by one thread at a time."""

    path: Path
    check_room: Callable[[int], None]
    hash: Any = field(default_factory=hashlib.sha256)
    size_bytes: int = 0

    @property
    def sha256(self) -> str:
        """Hash of what was received."""
        digest: str = self.hash.hexdigest()
        return digest

    def write(self, data: bytes) -> None:
        """Write the next bytes. Raises DiskFull, OSError."""
        self.check_room(len(data))  # others write too, and the database needs space
        with self.path.open("ab") as file:
            file.write(data)
        self.hash.update(data)
        self.size_bytes += len(data)

    def drop(self) -> None:
        """Delete a file that is not needed, or was cut off."""
        self.path.unlink(missing_ok=True)


class Snapshots:
    """Any thread may call it. :meth:`start` first; :meth:`close` when the server shuts down."""

    def __init__(self, folder: Path, database: Database, writer: Writer, *, max_bytes: int, memory_bytes: int) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._database = database
        self._writer = writer
        self._taking = threading.Lock()
        self._completing = threading.Lock()
        self.conversions = Conversions(folder, database, self._change, self._make_room, memory_bytes=memory_bytes)
        self.uploads = Uploads(folder / "uploading", self._check_room)
        self.forget: Callable[[str], None] = lambda ident: None
        """Called with the recording id of a deleted device."""

    def start(self) -> None:
        """Delete what was cut off, and continue with what waited."""
        self._delete_cut_off(starting=True)
        self.uploads.drop_old()
        if self._database.read_only is None:
            self.conversions.start()

    def close(self) -> None:
        """Stop the conversion; another process, or the next start, takes it over."""
        self.conversions.close()

    def _delete_cut_off(self, *, starting: bool) -> None:
        """Delete files that a process which has ended did not complete.

        A process whose writing connection broke looks ended until it has a new one. So what was written lately stays.

        starting   True when this process starts: files with its number are those of an earlier process
        """
        own = {self._database.number}
        with self._database.reader() as connection:
            running = living(connection) - own if starting else living(connection) | own
            least_seconds = ABANDONED_SECONDS if is_shared(connection) else 0.0
        for part in ("incoming", "making"):
            for path in (self.folder / part).glob("*"):
                if owner_of(path) not in running and _age_seconds(path) >= least_seconds:
                    _remove(path)

    # ---- called by the API ----

    def upload(self, announced_bytes: int | None) -> Upload:
        """A new upload. Raises DiskFull, OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "incoming").mkdir(exist_ok=True)
        self._delete_cut_off(starting=False)
        if announced_bytes is not None:
            self._check_room(announced_bytes)
        return Upload(self.folder / "incoming" / f"{secrets.token_hex(16)}-{self._database.number}", self._check_room)

    def take(self, file: Path, sha256: str, name: str, project: str | None = None) -> tuple[StoredSnapshot, bool]:
        """Make a snapshot of a complete file, or return the project's one of the same file (and True). Raises as Writer.do."""
        made = StoredSnapshot(
            id=secrets.token_hex(6), sha256=sha256, project=project, name=name, bytes=file.stat().st_size, stored_bytes=0,
            state="waiting", problem=None, received_ns=time.time_ns(), devices=[], notes=[],
        )  # fmt: skip
        with self._taking:
            (self.folder / "waiting").mkdir(exist_ok=True)
            file.rename(self._file(made.id))
            with contextlib.ExitStack() as unless_stored:
                unless_stored.callback(self._file(made.id).unlink, missing_ok=True)
                known, failed = self._change(lambda connection: insert_unless_known(connection, made))
                for ident in failed:  # a retry may succeed
                    self._forget_files(ident, [])
                if known is not None:
                    return known, True
                unless_stored.pop_all()
        self.conversions.wake()
        return made, False

    def complete(self, upload: str) -> tuple[StoredSnapshot, bool]:
        """Make a snapshot of an upload in parts, as :meth:`take`. Raises LookupError, Incomplete, OSError, and as Writer.do."""
        with self._completing, self.uploads.locked(upload):  # once, however often it is asked for
            found = self.uploads.find(upload)
            if found.received_bytes < found.size_bytes:
                raise Incomplete(found)
            taken = self.take(self.uploads.path(upload), self.uploads.sha256(upload), found.name, found.project)
            self.uploads.drop(upload)
        return taken

    def progress(self, ident: str) -> tuple[int, int, int]:
        """(number of files before it, bytes read, bytes in total) of a snapshot that waits or is converted."""
        if (progress := self.conversions.progress(ident)) is not None:
            return 0, *progress
        with self._database.reader() as connection:
            return place_of(connection, ident), 0, 0

    def delete(self, ident: str, note: Note | None = None) -> None:
        """Delete a snapshot, whatever its state. Raises LookupError, and as Writer.do."""
        with self._database.reader() as connection:
            found = find_snapshot(connection, ident)
        if found is None:
            raise LookupError(ident)

        def work(connection: Connection) -> None:
            delete_snapshot(connection, ident)
            if note is not None:
                note(connection)

        self._change(work)
        self.conversions.cancel(ident)
        self._forget_files(ident, found.devices)

    def _forget_files(self, ident: str, devices: Sequence[DeviceFacts]) -> None:
        for device in devices:
            self.forget(f"{ident}-{device['device']}")
        self._file(ident).unlink(missing_ok=True)
        # Mapped files stay readable for those who have them open.
        shutil.rmtree(self.folder / ident, ignore_errors=True)

    def columns(self, ident: str) -> tuple[Path, Path] | None:
        """Folders of a device, by its recording id: its columns, and the stacks. None: there is no such device."""
        snapshot, _, device = ident.rpartition("-")
        folder = self.folder / snapshot / device
        if not snapshot.isalnum() or not device.isdigit() or not folder.is_dir():
            return None
        return folder, self.folder / snapshot / STACKS

    def _make_room(self, newest: str) -> None:
        """Delete the oldest snapshots while all of them exceed the limit; the newest stays."""
        with self._database.reader() as connection:
            stored = list_snapshots(connection)
        used = sum(one.stored_bytes for one in stored)
        for oldest in reversed(stored):
            if used <= self._max_bytes:
                return
            if oldest.id != newest and oldest.state == "ready":
                log.info("snapshot %s (%s) was deleted: all together took too much of the disk", oldest.id, oldest.name)
                self.delete(oldest.id)
                used -= oldest.stored_bytes

    # ---- files and rows ----

    def _file(self, ident: str) -> Path:
        return waiting_file(self.folder, ident)

    def _check_room(self, wanted: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < wanted + _SPARE_BYTES:
            raise DiskFull(f"{wanted:,} bytes are needed, {free:,} are free")

    def _change(self, work: Callable[[Connection], T]) -> T:
        return self._writer.do(lambda connection, _: work(connection)).result(_WAIT_SECONDS)


def _age_seconds(path: Path) -> float:
    """Time since something was last written to a file, or to the newest file of a folder."""
    newest = 0.0
    for one in [path, *path.rglob("*")]:
        with contextlib.suppress(OSError):
            newest = max(newest, one.stat().st_mtime)
    return time.time() - newest


def _remove(path: Path) -> None:
    """Delete a file or folder, as far as it is still there and may be deleted."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
