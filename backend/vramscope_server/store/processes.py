"""Server processes that share one PostgreSQL database: their numbers, which of them live, and the locks between them.

Each process holds an advisory lock under its number for as long as its writing connection lives. PostgreSQL frees it when
the process dies, however that happens. So what a dead process had claimed is recognised without timeouts. With SQLite
there is one process: it has the number 0, needs no locks, and always leads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

ALONE: Final = 0
"""Number of the only process of an SQLite database."""


class Lock(IntEnum):
    """Kinds of advisory locks: the first of PostgreSQL's two numbers."""

    process = 0x7673_0001
    leader = 0x7673_0002
    migration = 0x7673_0003
    run = 0x7673_0004
    snapshot = 0x7673_0005
    first_token = 0x7673_0006
    database_id = 0x7673_0007


def is_shared(connection: Connection) -> bool:
    """Whether other processes may use the database at the same time."""
    return connection.dialect.name == "postgresql"


def new_number(connection: Connection) -> int:
    """A number that no other process had."""
    return int(connection.exec_driver_sql("SELECT nextval('server_processes')").scalar() or 0)


def live(connection: Connection, number: int) -> None:
    """Hold the lock of this number until the connection is closed."""
    connection.execute(_HOLD, {"kind": Lock.process, "number": number})


def living(connection: Connection) -> set[int]:
    """Numbers of the processes that are connected."""
    if not is_shared(connection):
        return {ALONE}
    return {int(number) for number in connection.execute(_LIVING, {"kind": Lock.process}).scalars()}


def take_lead(connection: Connection) -> bool:
    """Whether this connection leads from now on, until it is closed. Only one does."""
    return bool(connection.execute(_TRY, {"kind": Lock.leader, "number": 0}).scalar())


def lock_all(connection: Connection, kind: Lock, names: Iterable[str]) -> None:
    """Hold the locks of these names until the transaction ends. One order for all, so that no two wait for each other.

    Names may share a lock, which costs time and nothing else.
    """
    if is_shared(connection):
        numbers = sorted({_number(name) for name in names})
        connection.execute(_LOCK_ALL, {"kind": kind, "numbers": numbers})


def _number(name: str) -> int:
    unsigned = zlib.crc32(name.encode())
    return unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned


_HOLD: Final = sa.text("SELECT pg_advisory_lock(CAST(:kind AS int), CAST(:number AS int))")
_TRY: Final = sa.text("SELECT pg_try_advisory_lock(CAST(:kind AS int), CAST(:number AS int))")
_LOCK_ALL: Final = sa.text(
    "SELECT pg_advisory_xact_lock(CAST(:kind AS int), number) FROM unnest(CAST(:numbers AS int[])) AS number"
)
_LIVING: Final = sa.text(
    "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2 AND classid = :kind "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
