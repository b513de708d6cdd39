"""Brings the tables of a database to this version. Of several server processes one does, and the others wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.store.processes import Lock
from vramscope_server.store.storage_errors import DatabaseRefused, storage_trouble
from vramscope_server.store.tables import metadata

HEAD: Final = "0008"
"""The newest migration in ``migrations/versions``; a test checks it."""
MIGRATIONS: Final = Path(__file__).resolve().parent.parent / "migrations"


def revisions() -> set[str]:
    """Versions of the tables that this version knows."""
    return {file.name.split("_")[0] for file in (MIGRATIONS / "versions").glob("[0-9]*.py")}


def upgrade(connection: Connection) -> None:
    """Migrate. Raises DatabaseRefused."""
    # Imported only if there is something to migrate: it costs half a second and 8 MB.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
        connection.commit()
    except SQLAlchemyError as error:
        why = storage_trouble(error) or str(error).splitlines()[0]
        raise DatabaseRefused(f"the tables could not be created: {why}.") from error


def require_columns(connection: Connection) -> None:
    """Raise DatabaseRefused where a table or column of this version is missing: its version says that it is there."""
    found = {
        table: {column["name"] for column in columns}
        for (_, table), columns in sa.inspect(connection).get_multi_columns().items()
    }
    for table in metadata.sorted_tables:
        missing = sorted(set(table.columns.keys()) - found.get(table.name, set()))
        if missing:
            what = (
                f"the column {missing[0]} of the table {table.name}"
                if table.name in found
                else f"the table {table.name}"
            )
            raise DatabaseRefused(
                f"the database lacks {what}, although its tables are at version {HEAD}: another program changed it; "
                "restore a backup, or give another --database."
            )


@contextlib.contextmanager
def migrating(connection: Connection) -> Iterator[None]:
    """Only one process of a PostgreSQL database is in here; others wait. Closing the connection ends it, too."""
    numbers = (int(Lock.migration), 0)
    connection.exec_driver_sql("SELECT pg_advisory_lock(%s::int, %s::int)", numbers)
    connection.commit()
    yield
    connection.exec_driver_sql("SELECT pg_advisory_unlock(%s::int, %s::int)", numbers)
    connection.commit()
