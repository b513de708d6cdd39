"""Snapshot files: received, converted to columns by a separate process, and opened.

An uploaded file is under ``incoming`` until it is complete, or under ``uploading`` if it comes in parts (uploads.py). Then it
waits; one is converted at a time. Its columns become
a folder ``<id>``, under ``making`` first, so that a folder is always complete. Nothing else writes here. Files under
``incoming`` and ``making`` at the start of the server were cut off, and are deleted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy.engine import Connection

from vramscope_server.snapshot_conversion import STACKS
from vramscope_server.store.audit_log import Note
from vramscope_server.store.database import Database
from vramscope_server.store.snapshots import (
    StoredSnapshot,
    delete_snapshot,
    find_snapshot,
    insert_snapshot,
    list_snapshots,
    snapshot_of_file,
    update_snapshot,
)
from vramscope_server.store.writer import QueueFull, StorageTrouble, Writer, WriterClosed
from vramscope_server.uploads import Incomplete, Uploads

log = logging.getLogger("vramscope_server.snapshots")
T = TypeVar("T")

MAX_FILE_BYTES: Final = 16 << 30
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


@dataclass(eq=False)
class _Conversion:
    snapshot: str
    done: int = 0
    total: int = 0
    process: subprocess.Popen[bytes] | None = None
    cancelled: bool = False


class Snapshots:
    """Any thread may call it. :meth:`start` first; :meth:`close` when the server shuts down."""

    def __init__(self, folder: Path, database: Database, writer: Writer, *, max_bytes: int, memory_bytes: int) -> None:
        self.folder = folder
        self.memory_bytes = memory_bytes
        self._max_bytes = max_bytes
        self._database = database
        self._writer = writer
        self._waiting: list[_Conversion] = []
        self._running: _Conversion | None = None
        self._changed = threading.Condition()
        self._taking = threading.Lock()
        self._completing = threading.Lock()
        self._closing = False
        self._thread: threading.Thread | None = None
        self.uploads = Uploads(folder / "uploading", self._check_room)
        self.forget: Callable[[str], None] = lambda ident: None
        """Called with the recording id of a deleted device."""

    def start(self) -> None:
        """Delete what was cut off, and continue with what waited."""
        for part in ("incoming", "making"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
        self.uploads.drop_old()
        with self._database.reader() as connection:
            stored = list_snapshots(connection)
        for snapshot in reversed(stored):
            if snapshot.state in ("waiting", "converting"):
                if self._file(snapshot.id).exists():
                    self._enqueue(snapshot.id)
                else:
                    problem = "the server was stopped while it was converted: upload it again"
                    self._update(snapshot.id, state="failed", problem=problem)

    def close(self) -> None:
        """Stop the conversion; it restarts with the server."""
        with self._changed:
            self._closing = True
            if self._running is not None and self._running.process is not None:
                self._running.process.kill()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(10)

    # ---- called by the API ----

    def upload(self, announced_bytes: int | None) -> Upload:
        """A new upload. Raises DiskFull, OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / "incoming").mkdir(exist_ok=True)
        if announced_bytes is not None:
            self._check_room(announced_bytes)
        return Upload(self.folder / "incoming" / secrets.token_hex(16), self._check_room)

    def take(self, file: Path, sha256: str, name: str, project: str | None = None) -> tuple[StoredSnapshot, bool]:
        """Make a snapshot of a complete file, or return the project's one of the same file (and True). Raises as Writer.do."""
        with self._taking:
            with self._database.reader() as connection:
                known = snapshot_of_file(connection, sha256, project)
            if known is not None and known.state != "failed":
                file.unlink()
                return known, True
            if known is not None:  # a retry may succeed
                self.delete(known.id)
            made = StoredSnapshot(
                id=secrets.token_hex(6), sha256=sha256, project=project, name=name, bytes=file.stat().st_size, stored_bytes=0,
                state="waiting", problem=None, received_ns=time.time_ns(), devices=[], notes=[],
            )  # fmt: skip
            (self.folder / "waiting").mkdir(exist_ok=True)
            file.rename(self._file(made.id))
            with contextlib.ExitStack() as unless_stored:
                unless_stored.callback(self._file(made.id).unlink, missing_ok=True)
                self._change(lambda connection: insert_snapshot(connection, made))
                unless_stored.pop_all()
        self._enqueue(made.id)
        return made, False

    def complete(self, upload: str) -> tuple[StoredSnapshot, bool]:
        """Make a snapshot of an upload in parts, as :meth:`take`. Raises LookupError, Incomplete, OSError, and as Writer.do."""
        with self._completing:  # once, however often it is asked for
            found = self.uploads.find(upload)
            if found.received_bytes < found.size_bytes:
                raise Incomplete(found)
            taken = self.take(self.uploads.path(upload), self.uploads.sha256(upload), found.name, found.project)
            self.uploads.drop(upload)
        return taken

    def progress(self, ident: str) -> tuple[int, int, int]:
        """(number of files before it, bytes read, bytes in total) of a snapshot that waits or is converted."""
        with self._changed:
            running = self._running
            if running is not None and running.snapshot == ident:
                return 0, running.done, running.total
            for place, waiting in enumerate(self._waiting):
                if waiting.snapshot == ident:
                    return place + int(running is not None), 0, 0
        return 0, 0, 0

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
        with self._changed:
            self._waiting = [waiting for waiting in self._waiting if waiting.snapshot != ident]
            if self._running is not None and self._running.snapshot == ident:
                self._running.cancelled = True
                if self._running.process is not None:
                    self._running.process.kill()
        for device in found.devices:
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

    # ---- conversion ----

    def _enqueue(self, ident: str) -> None:
        with self._changed:
            self._waiting.append(_Conversion(ident))
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="vramscope-snapshots", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._running = None
                while not self._waiting and not self._closing:
                    self._changed.wait()
                if self._closing:
                    return
                job = self._running = self._waiting.pop(0)
            try:
                self._convert(job)
                self._make_room(job.snapshot)
            except (StorageTrouble, QueueFull, WriterClosed) as trouble:
                log.warning("snapshot %s waits for the next start: %s", job.snapshot, trouble)
            except Exception:  # one bad file must not end the thread that converts all others
                log.exception("snapshot %s was not converted", job.snapshot)
                with contextlib.suppress(Exception):
                    self._update(job.snapshot, state="failed", problem="the server's log says why")

    def _convert(self, job: _Conversion) -> None:
        self._update(job.snapshot, state="converting")
        making = self.folder / "making" / job.snapshot
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        words = [str(self._file(job.snapshot)), str(making), str(self.memory_bytes), str(os.getpid())]
        result: dict[str, Any] = {}
        try:
            with subprocess.Popen(
                [sys.executable, "-m", "vramscope_server.snapshot_conversion", *words],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            ) as process:  # fmt: skip
                with self._changed:
                    job.process = process
                    if job.cancelled or self._closing:
                        process.kill()
                errors = _Tail(process.stderr)
                for line in process.stdout or ():
                    with contextlib.suppress(ValueError):
                        report = json.loads(line)
                        if "total" in report:
                            job.done, job.total = report["done"], report["total"]
                        else:
                            result = report
            if job.cancelled or self._closing:
                return
            self._settle(job, making, result, process.returncode, errors)
        finally:
            shutil.rmtree(making, ignore_errors=True)

    def _settle(self, job: _Conversion, making: Path, result: dict[str, Any], code: int, errors: _Tail) -> None:
        self._file(job.snapshot).unlink(missing_ok=True)
        if "devices" not in result:
            shutil.rmtree(making, ignore_errors=True)
            problem = result.get("problem")
            if problem is None:
                log.error("the conversion of %s ended with %s: %s", job.snapshot, code, errors.text())
                problem = "its conversion was killed" if code < 0 else "the server's log says why"
            self._update(job.snapshot, state="failed", problem=problem)
            return
        stored = sum(file.stat().st_size for file in making.rglob("*") if file.is_file())
        making.rename(self.folder / job.snapshot)
        found = {"devices": result["devices"], "notes": result["notes"], "stored_bytes": stored}
        self._update(job.snapshot, state="ready", problem=None, **found)
        with self._database.reader() as connection:
            deleted = find_snapshot(connection, job.snapshot) is None
        if deleted or job.cancelled:
            shutil.rmtree(self.folder / job.snapshot, ignore_errors=True)

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
        return self.folder / "waiting" / ident

    def _check_room(self, wanted: int) -> None:
        free = shutil.disk_usage(self.folder).free
        if free < wanted + _SPARE_BYTES:
            raise DiskFull(f"{wanted:,} bytes are needed, {free:,} are free")

    def _update(self, ident: str, **values: Any) -> None:
        self._change(lambda connection: update_snapshot(connection, ident, **values))

    def _change(self, work: Callable[[Connection], T]) -> T:
        return self._writer.do(lambda connection, _: work(connection)).result(_WAIT_SECONDS)


class _Tail:
    """End of a process's error output, read by a thread so that the process never blocks."""

    def __init__(self, stream: Any) -> None:
        self._kept = b""
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while data := self._stream.read1(65536):
            self._kept = (self._kept + data)[-4000:]

    def text(self) -> str:
        self._thread.join(1)
        return self._kept.decode(errors="replace")
