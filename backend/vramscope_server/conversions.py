"""Converts snapshot files to columns, one at a time, each in a process of its own.

The database says which file waits. Of several server processes one claims it; if that one dies, another takes it over.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from sqlalchemy.engine import Connection

from vramscope_server.artifact_store.disk_space import DiskFull
from vramscope_server.artifact_store.store import ArtifactStore, ArtifactsUnreachable
from vramscope_server.snapshot_conversion import job_line
from vramscope_server.store.database import Database
from vramscope_server.store.snapshots import (
    StoredSnapshot,
    claim_snapshot,
    find_snapshot,
    list_unfinished,
    release_snapshots,
    settle_snapshot,
)
from vramscope_server.store.writer import QueueFull, StorageTrouble, WriterClosed

log = logging.getLogger("vramscope_server.snapshots")
T = TypeVar("T")

SEARCH_SECONDS: Final = 2.0
"""Time between two searches for a file that another process received, or left."""
TROUBLE_SECONDS: Final = 30.0
"""Time until the next try after the database could not be written."""
PREPARED_SECONDS: Final = 300.0
"""Time after which a process is ended that waits for a file."""


class Write(Protocol):
    """Makes a change with the writer, and waits for it."""

    def __call__(self, work: Callable[[Connection], T]) -> T:
        """Result of the work."""


@dataclass(eq=False)
class _Conversion:
    snapshot: str
    done: int = 0
    total: int = 0
    curves: list[Any] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    cancelled: bool = False


class Conversions:
    """:meth:`start` first; :meth:`close` when the server shuts down. Any thread may call it."""

    def __init__(
        self,
        store: ArtifactStore,
        database: Database,
        change: Write,
        converted: Callable[[str], None],
        *,
        memory_bytes: int,
    ) -> None:
        """``converted`` is called with each snapshot that was settled."""
        self._store = store
        self._database = database
        self._change = change
        self._converted = converted
        self._memory_bytes = memory_bytes
        self._is_shared = database.kind == "postgresql"
        self._running: _Conversion | None = None
        self._changed = threading.Condition()
        self._woken = False
        self._closing = False
        self._thread: threading.Thread | None = None
        self._prepare_asked = False
        self._prepared: subprocess.Popen[bytes] | None = None
        self._prepared_at = 0.0

    def start(self) -> None:
        """Continue with what waited. It does not write here: a server starts on a full disk, too."""
        with self._database.reader() as connection:
            unfinished = list_unfinished(connection)
        if unfinished or self._is_shared:
            self.wake()

    def wake(self) -> None:
        """Look for a file that waits."""
        with self._changed:
            self._woken = True
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(target=self._run, name="vramscope-snapshots", daemon=True)
                self._thread.start()
            self._changed.notify()

    def prepare(self) -> None:
        """Start the process of the next conversion when an upload starts, so that it loads its machine code meanwhile."""
        if self._database.read_only is not None:
            return
        with self._changed:
            self._prepare_asked = True
        self.wake()

    def cancel(self, ident: str) -> None:
        """Stop the conversion of a snapshot that was deleted."""
        with self._changed:
            if self._running is not None and self._running.snapshot == ident:
                self._running.cancelled = True
                if self._running.process is not None:
                    self._running.process.kill()

    def curves(self, ident: str) -> list[Any]:
        """Coarse curve of each device (``CoarseCurve``) of the snapshot that this process converts, once it is read."""
        with self._changed:
            running = self._running
            return running.curves if running is not None and running.snapshot == ident else []

    def progress(self, ident: str) -> tuple[int, int] | None:
        """(bytes read, bytes in total) of the snapshot that this process converts; None for all others."""
        with self._changed:
            running = self._running
            return (running.done, running.total) if running is not None and running.snapshot == ident else None

    def close(self) -> None:
        """Stop the conversion."""
        with self._changed:
            self._closing = True
            if self._running is not None and self._running.process is not None:
                self._running.process.kill()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(10)
        self._end_prepared()

    def _run(self) -> None:
        released = False
        while not self._closing:
            claimed: StoredSnapshot | None = None
            pause = SEARCH_SECONDS if self._is_shared else None
            with self._changed:
                self._woken = False
            try:
                if not released:
                    self._change(lambda connection: release_snapshots(connection, self._database.number))
                    released = True
                claimed = self._change(lambda connection: claim_snapshot(connection, self._database.number))
                if claimed is not None:
                    self._convert(claimed.id)
                    self._converted(claimed.id)
                    continue
            except (StorageTrouble, QueueFull, WriterClosed, TimeoutError, ArtifactsUnreachable) as trouble:
                log.warning("snapshots wait: %s", trouble)
                pause = TROUBLE_SECONDS
                released = False  # what was claimed waits again
            except Exception:  # one bad file must not end the thread that converts all others
                log.exception("a snapshot was not converted")
                if claimed is not None:
                    pause = SEARCH_SECONDS
                    with contextlib.suppress(Exception):
                        self._settle(claimed.id, state="failed", problem="the server's log says why")
            self._wait(self._keep_prepared(pause))

    def _wait(self, seconds: float | None) -> None:
        with self._changed:
            if not self._woken and not self._closing:
                self._changed.wait(seconds)

    def _convert(self, ident: str) -> None:
        making = self._store.folder / "making" / f"{ident}-{self._database.number}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        copy = making.with_name(f"{ident}.file-{self._database.number}")
        try:
            self._convert_file(ident, self._fetched(ident, copy), making)
        finally:
            shutil.rmtree(making, ignore_errors=True)
            copy.unlink(missing_ok=True)

    def _fetched(self, ident: str, copy: Path) -> Path | None:
        """The file; None if it cannot be converted, which the row says then. Raises ArtifactsUnreachable."""
        try:
            file = self._store.fetch_file(ident, copy)
            problem = self._store.missing_file()
        except ArtifactsUnreachable:
            raise
        except (DiskFull, OSError) as trouble:
            reason = str(trouble) if isinstance(trouble, DiskFull) else trouble.strerror
            file, problem = None, f"its file could not be copied to the server's disk: {reason}"
        if file is None:
            self._settle(ident, state="failed", problem=problem)
        return file

    def _convert_file(self, ident: str, file: Path | None, making: Path) -> None:
        if file is None:
            return
        job = _Conversion(ident)
        result: dict[str, Any] = {}
        try:
            with self._process(file, making) as process:
                with self._changed:
                    job.process = process
                    self._running = job
                    if self._closing:
                        process.kill()
                errors = _Tail(process.stderr)
                for line in process.stdout or ():
                    with contextlib.suppress(ValueError):
                        report = json.loads(line)
                        if "total" in report:
                            job.done, job.total = report["done"], report["total"]
                        elif "curves" in report:
                            job.curves = report["curves"]
                        else:
                            result = report
            if not self._closing and not job.cancelled:
                self._take_result(ident, making, result, process.returncode, errors)
        finally:
            with self._changed:
                self._running = None

    def _process(self, file: Path, folder: Path) -> subprocess.Popen[bytes]:
        """The process that was prepared, else a new one."""
        with self._changed:
            prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared.stdin is not None:
            try:
                prepared.stdin.write(job_line(file, folder).encode())
                prepared.stdin.close()
                return prepared
            except OSError:  # it has ended
                _end(prepared)
        return self._started(str(file), str(folder))

    def _started(self, *words: str) -> subprocess.Popen[bytes]:
        command = [
            sys.executable,
            "-m",
            "vramscope_server.snapshot_conversion",
            str(self._memory_bytes),
            str(os.getpid()),
        ]
        return subprocess.Popen(
            [*command, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL if words else subprocess.PIPE,
        )

    def _keep_prepared(self, pause: float | None) -> float | None:
        """Start the process that an upload waits for, or end one that nobody needed. Returns the time until the next search."""
        with self._changed:
            asked, self._prepare_asked = self._prepare_asked, False
            if asked and self._prepared is None and not self._closing:
                with contextlib.suppress(OSError):  # no memory, no more processes: the conversion says so
                    self._prepared = self._started()
            if asked:
                self._prepared_at = time.monotonic()
            is_old = time.monotonic() - self._prepared_at >= PREPARED_SECONDS
        if is_old:
            self._end_prepared()
        if self._prepared is None:
            return pause
        return PREPARED_SECONDS if pause is None else min(pause, PREPARED_SECONDS)

    def _end_prepared(self) -> None:
        with self._changed:
            prepared, self._prepared = self._prepared, None
        if prepared is not None:
            _end(prepared)

    def _take_result(self, ident: str, making: Path, result: dict[str, Any], code: int, errors: _Tail) -> None:
        if "devices" not in result:
            problem = result.get("problem")
            if problem is None:
                log.error("the conversion of %s ended with %s: %s", ident, code, errors.text())
                problem = "its conversion was killed" if code < 0 else "the server's log says why"
            shutil.rmtree(making, ignore_errors=True)  # before anybody sees that it failed
            self._store.drop_file(ident)
            self._settle(ident, state="failed", problem=problem)
            return
        stored = sum(file.stat().st_size for file in making.rglob("*") if file.is_file())
        self._store.put_columns(ident, making)
        found = {"devices": result["devices"], "notes": result["notes"], "stored_bytes": stored}
        self._settle(ident, state="ready", problem=None, **found)

    def _settle(self, ident: str, **values: Any) -> None:
        """Store the result, then delete the file: whoever takes over in between still needs it."""
        owner = self._database.number
        settled = self._change(lambda connection: settle_snapshot(connection, ident, owner, **values))
        if not settled:
            with self._database.reader() as connection:
                if find_snapshot(connection, ident) is not None:
                    return  # another process has taken over
            self._store.drop_columns(ident)
        self._store.drop_file(ident)


def owner_of(path: Path) -> int | None:
    """Number of the server process that writes a file or folder, by its name; None for one of an earlier version."""
    number = path.name.rpartition("-")[2]
    return int(number) if "-" in path.name and number.isdigit() else None


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that waits for a file."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):  # a line that was not read is lost with the process
                pipe.close()


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
        """What was read."""
        self._thread.join(1)
        return self._kept.decode(errors="replace")
