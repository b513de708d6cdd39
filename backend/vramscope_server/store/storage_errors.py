"""Errors of the storage in words for people."""

from __future__ import annotations

import sqlite3

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError


class DatabaseRefused(Exception):
    """The database cannot be used; the message is one sentence for the person who started the server."""


def storage_trouble(error: BaseException) -> str | None:
    """Problem of the storage in words for people; None if the error is of another kind."""
    if not isinstance(error, DBAPIError):
        return str(error) if isinstance(error, DatabaseRefused) else None
    text = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if isinstance(error.orig, sqlite3.OperationalError | sqlite3.DatabaseError):
        if "full" in text:
            return "the disk that holds the database is full"
        if "readonly" in text or "read-only" in text:
            return "the database is read-only"
        if "locked" in text or "busy" in text:
            return "another program holds the database"
        if "malformed" in text or "not a database" in text:
            return "the database file is damaged"
        if "I/O" in text or "unable to open" in text:
            return f"the database cannot be written ({text})"
        return None
    if error.connection_invalidated or isinstance(error, sa.exc.OperationalError | sa.exc.InternalError):
        return f"the database does not answer ({text})"
    return None
