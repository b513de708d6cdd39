"""``vramscope backup``: copies an SQLite database and its snapshot files while the server runs.

SQLite copies page by page, as one consistent state. The columns of a snapshot never change once they are complete, so that each
is copied once and shared by all copies of the database.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import sqlite3
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from vramscope_server.cli.client import Failure
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.server_settings import server_settings

NAME: Final = "vramscope-%Y%m%dT%H%M%SZ.db"


def show(folder: Path, every_hours: float, keep: int, database: str | None, data_dir: Path | None) -> None:
    """Make one copy, or one at each interval until a signal ends the process. Raises Failure."""
    source, snapshots = _source(database, data_dir)
    while True:
        started = time.monotonic()
        try:
            with _alone(folder):
                made = back_up(source, snapshots, folder)
                gone = prune(folder, keep)
        except (OSError, sqlite3.Error) as error:
            if not every_hours:
                raise Failure(f"{source} could not be copied to {folder}: {error}", BAD_ARGUMENTS) from None
            print(f"{source} could not be copied to {folder}: {error}; trying again in an hour", flush=True)
            time.sleep(3600)
            continue
        print(
            f"{made} ({made.stat().st_size:,} bytes, {time.monotonic() - started:.1f} s"
            f"{f', {gone} older deleted' if gone else ''})",
            flush=True,
        )
        if not every_hours:
            return
        time.sleep(every_hours * 3600)


def back_up(source: Path, snapshots: Path, folder: Path) -> Path:
    """Copy a database and what is new of its snapshots. Returns the copy. Raises OSError, sqlite3.Error."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "snapshots").mkdir(mode=0o700, exist_ok=True)
    made = folder / time.strftime(NAME, time.gmtime())
    part = made.with_suffix(".part")
    part.unlink(missing_ok=True)
    part.touch(mode=0o600)
    try:
        with (
            contextlib.closing(sqlite3.connect(_uri(source, "ro"), uri=True, timeout=30)) as reading,
            contextlib.closing(sqlite3.connect(part)) as writing,
        ):
            reading.backup(writing)  # in one step: a write between two steps would restart it; readers block no writer
            verdict = writing.execute("PRAGMA quick_check(1)").fetchone()[0]
            writing.execute("PRAGMA journal_mode=DELETE")  # the copy is one file; the server sets it back
        if verdict != "ok":
            raise sqlite3.DatabaseError(f"the copy is damaged: {verdict}")
        for ident in _snapshots_of(part):
            _copy_once(snapshots / ident, folder / "snapshots" / ident)
        part.rename(made)
    finally:
        for left in (part, *_beside(part)):
            left.unlink(missing_ok=True)
    return made


def prune(folder: Path, keep: int) -> int:
    """Delete all but the newest copies, and snapshots that none of them lists. Returns the number of copies."""
    copies = sorted(folder.glob("vramscope-*.db"))
    gone = copies[:-keep] if keep else []
    for copy in gone:
        for file in (copy, *_beside(copy)):
            file.unlink(missing_ok=True)
    try:
        listed = {ident for copy in copies[len(gone) :] for ident in _snapshots_of(copy)}
    except sqlite3.Error as error:
        print(f"no snapshot is deleted in {folder}, because one of the copies cannot be read: {error}", flush=True)
        return len(gone)
    for found in (folder / "snapshots").glob("*"):
        if found.name not in listed:
            shutil.rmtree(found, ignore_errors=True)
    return len(gone)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process makes a copy here."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _beside(database: Path) -> list[Path]:
    """Files that SQLite may make beside a database. Copies of earlier versions have them."""
    return [database.with_name(database.name + end) for end in ("-wal", "-shm", "-journal")]


def _snapshots_of(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(_uri(database, "ro"), uri=True)) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM snapshots WHERE state = 'ready'")]


def _copy_once(source: Path, target: Path) -> None:
    if target.exists() or not source.exists():  # the file was deleted in the meantime
        return
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(mode=0o700, exist_ok=True)
    shutil.copytree(source, part)
    part.rename(target)


def _uri(path: Path, mode: str) -> str:
    return f"file:{urllib.parse.quote(str(path))}?mode={mode}"


def _source(database: str | None, data_dir: Path | None) -> tuple[Path, Path]:
    """The SQLite file, and the folder of its snapshots. Raises Failure."""
    settings, url = server_settings(database, data_dir)
    if url.get_backend_name() != "sqlite":
        raise Failure(
            f"{url.get_backend_name()} has its own backup; for PostgreSQL: pg_dump {url.database}", BAD_ARGUMENTS
        )
    if settings.artifacts is not None:
        print(f"snapshot files lie in {settings.artifacts}, and are not copied", flush=True)
    return Path(str(url.database)), settings.snapshots_dir
