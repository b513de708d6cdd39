"""Identifier of a database, by which other stores recognise what belongs to it. A copy of the database has the same."""

from __future__ import annotations

import secrets
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.processes import Lock, lock_all
from vramscope_server.store.tables import preferences

NAME: Final = "database_id"


def find_database_id(connection: Connection) -> str | None:
    """The identifier, if it was made."""
    row = connection.execute(sa.select(preferences.c.value).where(preferences.c.name == NAME)).one_or_none()
    return None if row is None else str(row.value)


def make_database_id(connection: Connection) -> str:
    """The identifier, made where there is none. Of several processes one makes it."""
    lock_all(connection, Lock.database_id, [NAME])
    found = find_database_id(connection)
    if found is not None:
        return found
    made = secrets.token_hex(16)
    connection.execute(sa.insert(preferences).values(name=NAME, value=made))
    return made
