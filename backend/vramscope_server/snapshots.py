"""Snapshot files: received, converted to columns by a separate process, and opened.

An uploaded file is under ``incoming`` until it is complete, or with the uploads of the store if it comes in parts. Then it
waits in the store of artifacts (artifact_store); each server process converts one at a time (conversions.py). Its columns are
a folder, under ``making`` until they are complete. Only server processes write here. What a process had under ``incoming`` and
``making`` when it ended was cut off, and is deleted at the next start of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Connection

from vramscope_server.analysis.snapshot_format.device_facts import DeviceFacts
from vramscope_server.artifact_store.disk_space import check_room
from vramscope_server.artifact_store.store import ID_LENGTH, ArtifactStore, ArtifactsUnreachable, Needed, PartialUploads
from vramscope_server.conversions import Conversions, owner_of
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
    list_unfailed,
    list_unfinished,
    place_of,
)
from vramscope_server.store.writer import Writer
from vramscope_server.uploads import Incomplete

log = logging.getLogger("vramscope_server.snapshots")
T = TypeVar("T")

MAX_FILE_BYTES: Final = 16 << 30
ABANDONED_SECONDS: Final = 600.0
"""Age of the newest bytes of a file that a process which looks ended did not complete, until it is deleted."""
_WAIT_SECONDS: Final = 30


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

    def __init__(
        self, store: ArtifactStore, database: Database, writer: Writer, *, max_bytes: int, memory_bytes: int
    ) -> None:
        self.store = store
        self._max_bytes = max_bytes
        self._database = database
        self._writer = writer
        self._taking = threading.Lock()
        self._completing = threading.Lock()
        self.conversions = Conversions(store, database, self._change, self._make_room, memory_bytes=memory_bytes)
        self.forget: Callable[[str], None] = lambda ident: None
        """Called with the recording id of a deleted device."""

    @property
    def folder(self) -> Path:
        """Folder of this machine for files that are being received or made."""
        return self.store.folder

    @property
    def uploads(self) -> PartialUploads:
        """Uploads in parts."""
        return self.store.uploads

    def start(self) -> None:
        """Delete what was cut off, and continue with what waited."""
        self._delete_cut_off(starting=True)
        if self._database.read_only is not None:
            return
        with self._later("old uploads stay"):
            self.uploads.drop_old()
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
        incoming = self.folder / "incoming"
        incoming.mkdir(exist_ok=True)
        self._delete_cut_off(starting=False)
        if announced_bytes is not None:
            check_room(self.folder, announced_bytes)
        file = incoming / f"{secrets.token_hex(16)}-{self._database.number}"
        return Upload(file, lambda wanted: check_room(self.folder, wanted))

    def take(self, file: Path, sha256: str, name: str, project: str | None = None) -> tuple[StoredSnapshot, bool]:
        """Make a snapshot of a complete file, or return the project's one of the same file (and True).

        Raises OSError, and as Writer.do.
        """
        made = _waiting(secrets.token_hex(ID_LENGTH // 2), sha256, project, name, file.stat().st_size)
        self.store.put_file(made.id, file)
        return self._insert(made)

    def complete(self, upload: str) -> tuple[StoredSnapshot, bool]:
        """Make a snapshot of an upload in parts, as :meth:`take`. Raises LookupError, Incomplete, OSError, and as Writer.do."""
        with self._completing, self.uploads.locked(upload):  # once, however often it is asked for
            found = self.uploads.find(upload)
            if (stored := self._completed(upload)) is not None:  # a process ended before it could forget the upload
                return stored, True
            if found.received_bytes < found.size_bytes:
                raise Incomplete(found)
            sha256 = None
            with contextlib.suppress(LookupError):
                sha256 = self.uploads.sha256(upload)
            # Another process may have completed it meanwhile. The parts are deleted when the file is converted.
            if (stored := self._completed(upload)) is not None:
                return stored, True
            if sha256 is None:
                raise LookupError(upload)
            made = _waiting(upload[:ID_LENGTH], sha256, found.project, found.name, found.size_bytes)
            self.store.put_upload(made.id, upload)
            taken = self._insert(made)
            self.uploads.drop(upload)
        return taken

    def _completed(self, upload: str) -> StoredSnapshot | None:
        """Snapshot of an upload that was completed earlier; the upload is forgotten."""
        with self._database.reader() as connection:
            stored = find_snapshot(connection, upload[:ID_LENGTH])
        if stored is None or stored.state == "failed":
            return None
        self.uploads.drop(upload)
        return stored

    def _insert(self, made: StoredSnapshot) -> tuple[StoredSnapshot, bool]:
        """Store the row of a file that is in the store."""
        with self._taking:
            with contextlib.ExitStack() as unless_stored:
                unless_stored.callback(self.store.withdraw_file, made.id)
                known, failed = self._change(lambda connection: insert_unless_known(connection, made))
                unless_stored.pop_all()
            for ident in failed:  # a retry may succeed
                if ident != made.id:
                    self._forget_files(ident, [])
            if known is not None:
                if known.id != made.id:  # the same one: its upload is completed once more
                    self._forget_files(made.id, [])
                return known, True
        self.conversions.wake()
        return made, False

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
        with self._later(f"the files of snapshot {ident} stay"):
            self.store.drop_file(ident)
            self.store.drop_columns(ident)

    def columns(self, ident: str) -> tuple[Path, Path] | None:
        """Folders of a device, by its recording id: its columns, and the stacks. None: there is no such device.

        Raises ArtifactsUnreachable.
        """
        snapshot, _, device = ident.rpartition("-")
        if not snapshot.isalnum() or not device.isdigit():
            return None
        folder = self.store.columns(snapshot)
        if folder is None or not (folder / device).is_dir():
            return None
        return folder / device, folder / STACKS

    def sweep(self) -> None:
        """Delete files of the store that no snapshot needs. One process of a database does so, now and then.

        With a read-only database nothing is deleted: it may be an old copy, beside which another one is used.
        """
        if self._database.read_only is not None:
            return
        with self._later("left-over files stay"):
            self.store.sweep(self._needed)

    def _needed(self) -> Needed:
        with self._database.reader() as connection:
            return Needed(set(list_unfinished(connection)), set(list_unfailed(connection)))

    @contextlib.contextmanager
    def _later(self, what: str) -> Iterator[None]:
        """Log that the store did not answer. What was to be deleted is deleted by a sweep."""
        try:
            yield
        except ArtifactsUnreachable as trouble:
            log.warning("%s for now: %s", what, trouble.strerror)

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

    def _change(self, work: Callable[[Connection], T]) -> T:
        return self._writer.do(lambda connection, _: work(connection)).result(_WAIT_SECONDS)


def _waiting(ident: str, sha256: str, project: str | None, name: str, size_bytes: int) -> StoredSnapshot:
    return StoredSnapshot(
        id=ident, sha256=sha256, project=project, name=name, bytes=size_bytes, stored_bytes=0,
        state="waiting", problem=None, received_ns=time.time_ns(), devices=[], notes=[],
    )  # fmt: skip


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
