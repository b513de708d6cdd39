"""Opens the database, or says in one sentence why it cannot: engines for one writer and for many readers.

SQLite runs in WAL mode with ``synchronous=NORMAL``. A commit is in the write-ahead log, in the operating system's hands,
before it is acknowledged, so a crash or SIGKILL of the server loses nothing that was acknowledged. Only a crash of the
whole machine can lose the newest commits (never the file's consistency). ``VRAMSCOPE_SYNCHRONOUS=FULL`` waits for the
disk at each commit and closes that gap too, at the price of one fsync a commit.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool, QueuePool

from vramscope_server.store.migration import HEAD, migrating, require_columns, revisions, upgrade
from vramscope_server.store.processes import ALONE, live, new_number
from vramscope_server.store.scalars import words
from vramscope_server.store.storage_errors import DatabaseRefused

APPLICATION_ID: Final = 0x76726D73
"""Mark of an SQLite file of vramscope ("vrms")."""
_ADVISORY_LOCK: Final = 0x7672616D
"""Held by every server process, shared with the others. Servers of before hold it alone, and so does a migration."""
_WRITER_SETTINGS: Final = (
    "SET lock_timeout = '20s'",
    "SET idle_in_transaction_session_timeout = '60s'",
    "SET tcp_keepalives_idle = 30",
    "SET tcp_keepalives_interval = 10",
    "SET tcp_keepalives_count = 3",
)
"""Bounds how long others wait for the locks of a process that hangs, or whose machine is gone."""
_CACHE_KIB: Final = 1000
"""Pages that each SQLite connection keeps. More fills up for an hour while a database grows, and makes nothing faster: the
system keeps the file's pages, too."""
_CHECK_BELOW_BYTES: Final = 64 * 1024 * 1024


def with_driver(url: URL) -> URL:
    """The URL with the PostgreSQL driver of the extra ``postgres`` where it names none."""
    if url.get_backend_name() == "postgresql" and url.get_driver_name() == "psycopg2":
        return url.set(drivername="postgresql+psycopg")
    return url


class Database:
    """A database: a connection to write on, for the writer thread alone, and a pool of readers.

    kind       "sqlite" or the name of another SQLAlchemy dialect
    number     number of this server process (processes.py)
    read_only  why nothing can be written, or None
    """

    def __init__(self, url: str, *, synchronous: str = "NORMAL") -> None:
        """Open, check and migrate. Raises DatabaseRefused."""
        try:
            self.url: URL = make_url(url)
            self.url.get_dialect()
        except (ArgumentError, NoSuchModuleError) as error:
            raise DatabaseRefused(f"{url!r} is not a database URL of SQLAlchemy: {error}") from error
        self.kind: str = self.url.get_backend_name()
        self.read_only: str | None = None
        self.number = ALONE
        self._lock: IO[bytes] | None = None
        if self.kind == "sqlite":
            self._open_sqlite(synchronous)
        else:
            self._open_server()
        with contextlib.ExitStack() as unless_migrated:
            unless_migrated.callback(self.close)
            self._migrate()
            unless_migrated.pop_all()

    # -- opening

    def _open_sqlite(self, synchronous: str) -> None:
        if self.url.database in (None, "", ":memory:"):
            raise DatabaseRefused(
                "the database must be a file: in-memory SQLite cannot be shared by writer and readers."
            )
        path = Path(str(self.url.database)).absolute()
        self.path = path
        new = not path.exists() or path.stat().st_size == 0
        if new:
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.touch(mode=0o600)  # SQLite gives its log the same mode
            except OSError as error:
                raise DatabaseRefused(f"{path} cannot be created: {error.strerror}.") from error
        else:
            try:
                with path.open("rb") as file:
                    magic = file.read(16)
            except OSError as error:
                raise DatabaseRefused(f"{path} cannot be read: {error.strerror}.") from error
            if magic != b"SQLite format 3\0":
                raise DatabaseRefused(f"{path} is not an SQLite database; nothing was changed in it.")
        self.read_only = _why_read_only(path)
        quoted = urllib.parse.quote(str(path))
        self._mode = "mode=ro" if self.read_only is None else _read_only_mode(quoted)

        def connect_reader() -> sqlite3.Connection:
            connection = sqlite3.connect(f"file:{quoted}?{self._mode}", uri=True, check_same_thread=False, timeout=10)
            connection.isolation_level = None
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            return connection

        def connect_writer() -> sqlite3.Connection:
            connection = sqlite3.connect(path, check_same_thread=False, timeout=10)
            connection.isolation_level = None
            connection.execute("PRAGMA foreign_keys=ON")
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint=4000")
            connection.execute("PRAGMA journal_size_limit=33554432")
            connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
            return connection

        self._readers: Engine = sa.create_engine(
            "sqlite://",
            creator=connect_reader,
            poolclass=QueuePool,
            pool_use_lifo=True,  # each connection keeps pages of its own: one that rests takes no memory
            pool_size=6,
            max_overflow=10,
            json_serializer=_json,
        )
        self._writer: Engine = sa.create_engine(
            "sqlite://", creator=connect_writer, poolclass=NullPool, json_serializer=_json
        )
        event.listen(self._writer, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        event.listen(self._readers, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        if self.read_only is None:
            self._take_lock()
        with contextlib.ExitStack() as unless_recognised:
            unless_recognised.callback(self.close)
            self._recognise(path, new)
            unless_recognised.pop_all()

    def _take_lock(self) -> None:
        """Refuse a second server on one file: each would rely on its own counters."""
        lock = os.fdopen(os.open(f"{self.path}.lock", os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise DatabaseRefused(f"another vramscope server is using {self.path}.") from error
        self._lock = lock

    def _recognise(self, path: Path, new: bool) -> None:
        mode = "mode=rwc" if self.read_only is None else self._mode
        connection = sqlite3.connect(f"file:{urllib.parse.quote(str(path))}?{mode}", uri=True, timeout=10)
        connection.isolation_level = None
        try:
            if new:
                # Both take effect only before the first table exists.
                connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                return
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                raise DatabaseRefused(f"{path} is an SQLite database of another program; nothing was changed in it.")
            pages, size = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if pages * size < _CHECK_BELOW_BYTES:
                verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
                if verdict != "ok":
                    raise DatabaseRefused(_corrupt(path, verdict))
        except sqlite3.DatabaseError as error:
            if "full" in str(error):
                raise DatabaseRefused(f"the disk that holds {path} is full; free some space and restart.") from error
            raise DatabaseRefused(_corrupt(path, str(error))) from error
        finally:
            connection.close()

    def _open_server(self) -> None:
        url = with_driver(self.url)
        # With a database without encoding this driver returns bytes instead of text, even to SQLAlchemy's first query.
        options: dict[str, Any] = {"client_encoding": "utf8"} if url.get_driver_name() == "psycopg" else {}
        try:
            self._readers = sa.create_engine(
                url, pool_size=6, max_overflow=10, pool_pre_ping=True, json_serializer=_json, connect_args=options
            )
            self._writer = sa.create_engine(url, poolclass=NullPool, json_serializer=_json, connect_args=options)
            with self._writer.connect() as connection:
                if self.kind == "postgresql":
                    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
                    if encoding != "UTF8":
                        raise DatabaseRefused(_encoded(url, str(encoding)))
        except ModuleNotFoundError as error:
            raise DatabaseRefused(
                f"the driver {error.name!r} is missing; for PostgreSQL: pip install 'vramscope[server,postgres]'."
            ) from error
        except SQLAlchemyError as error:
            shown = url.render_as_string(hide_password=True)
            raise DatabaseRefused(f"{shown} cannot be opened: {str(error).splitlines()[0]}") from error

    def _migrate(self) -> None:
        if self.kind == "postgresql":
            with self._writer.connect() as connection, migrating(connection):
                self._migrate_on(connection)
                self.number = new_number(connection)
                connection.commit()
        elif (found := self._found()) != HEAD:
            if self.read_only is not None:
                raise DatabaseRefused(f"the database must be migrated from {found} to {HEAD}, but {self.read_only}.")
            with self.writer() as connection:
                upgrade(connection)
        with self._readers.connect() as connection:
            require_columns(connection)

    def _migrate_on(self, connection: Connection) -> None:
        """Bring PostgreSQL's tables to this version, once no server of another version uses them."""
        if self._found() == HEAD:
            return
        if not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_ADVISORY_LOCK})").scalar():
            raise DatabaseRefused(
                "the database must be migrated, and servers of an older version use it; stop all of them first."
            )
        upgrade(connection)
        connection.exec_driver_sql(f"SELECT pg_advisory_unlock({_ADVISORY_LOCK})")
        connection.commit()

    def _found(self) -> str | None:
        """Version of the tables; None if there are none. Raises DatabaseRefused for a newer one."""
        with self._readers.connect() as connection:
            known = sa.inspect(connection).has_table("alembic_version")
            found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar() if known else None
        if found is not None and found not in revisions():
            raise DatabaseRefused(
                f"the database was created by a newer vramscope (its tables are at {found}, this version has {HEAD}); "
                "upgrade vramscope, or give another --database."
            )
        return found

    # -- using

    @contextlib.contextmanager
    def reader(self) -> Iterator[Connection]:
        """A connection that reads one consistent state. On SQLite it cannot write."""
        with self._readers.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def changing(self) -> Iterator[Connection]:
        """A connection beside the writer's, in a short transaction. For PostgreSQL alone."""
        with self._readers.begin() as connection:
            yield connection

    def writer(self) -> Connection:
        """The connection to write on; close it when done. For the writer thread, and for opening.

        On PostgreSQL it holds this process's number. Raises DatabaseRefused if a server of before uses the database.
        """
        connection = self._writer.connect()
        if self.kind == "postgresql":
            with contextlib.ExitStack() as unless_held:
                unless_held.callback(connection.close)
                for statement in _WRITER_SETTINGS:
                    connection.exec_driver_sql(statement)
                if not connection.exec_driver_sql(f"SELECT pg_try_advisory_lock_shared({_ADVISORY_LOCK})").scalar():
                    raise DatabaseRefused(
                        "a vramscope server of another version uses this PostgreSQL database, or migrates it; "
                        "stop all of the older version first."
                    )
                live(connection, self.number)
                connection.commit()
                unless_held.pop_all()
        return connection

    def used_bytes(self, connection: Connection) -> int:
        """Size of the stored data; free pages inside an SQLite file are not counted."""
        if self.kind == "sqlite":
            count, free, size = (
                int(connection.exec_driver_sql(f"PRAGMA {name}").scalar() or 0)
                for name in ("page_count", "freelist_count", "page_size")
            )
            return (count - free) * size
        if self.kind == "postgresql":
            return int(connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar() or 0)
        return 0

    @property
    def shown(self) -> str:
        """Location of the data for people: a path, or the URL without its password."""
        return str(self.path) if self.kind == "sqlite" else self.url.render_as_string(hide_password=True)

    def close(self) -> None:
        """Close all connections; may be called twice."""
        for name in ("_readers", "_writer"):
            engine: Any = getattr(self, name, None)
            if engine is not None:
                engine.dispose()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


_NUL: Final = re.compile(r"((?<!\\)(?:\\\\)*)\\u0000")
"""A NUL in JSON: an odd number of backslashes before the ``u``."""


def _json(value: Any) -> str:
    """JSON that every database accepts: NaN and infinity become words, and a NUL, which PostgreSQL refuses, a mark."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(_with_words_for_nonfinite(value))
    return _NUL.sub(r"\1\\ufffd", text)


def _with_words_for_nonfinite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_words_for_nonfinite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_words_for_nonfinite(inner) for inner in value]
    return words(value) if isinstance(value, float) and not math.isfinite(value) else value


def _why_read_only(path: Path) -> str | None:
    if not os.access(path, os.W_OK):
        return f"{path} is read-only"
    if not os.access(path.parent, os.W_OK):
        return f"the folder {path.parent} is read-only"
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        return f"the file system that holds {path} is read-only"
    return None


def _read_only_mode(quoted: str) -> str:
    """Whether the file can be read as it is. WAL needs an -shm file beside the database. If there is none and none can be
    created, nobody writes either."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{quoted}?mode=ro", uri=True)) as connection:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        return "mode=ro&immutable=1"
    return "mode=ro"


def _corrupt(path: Path, verdict: str) -> str:
    first = verdict.strip().splitlines()[-1]
    return f"{path} is damaged ({first}); move it away, or restore it from a backup."


def _encoded(url: URL, encoding: str) -> str:
    return (
        f"{url.render_as_string(hide_password=True)} stores text as {encoding}, which lacks some characters; "
        f"CREATE DATABASE \"{url.database}\" ENCODING 'UTF8' TEMPLATE template0 creates one that has all."
    )
