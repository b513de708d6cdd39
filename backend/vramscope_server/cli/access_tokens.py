"""``vramscope token``: creates, lists and revokes access tokens on the server's machine. It needs no token itself.

It reads and writes the server's database. A running server knows of a change within five seconds.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from vramscope.protocol.messages import MAX_NAME
from vramscope_server.cli.client import Failure, print_json
from vramscope_server.cli.exit_codes import BAD_ARGUMENTS
from vramscope_server.cli.format import ago, plain
from vramscope_server.cli.server_settings import server_settings
from vramscope_server.cli.tables import Column, console, print_table
from vramscope_server.store.audit_log import Actor
from vramscope_server.store.database import with_driver
from vramscope_server.store.migration import HEAD
from vramscope_server.store.project_scope import ProjectScope
from vramscope_server.store.token_rows import Role, delete_token, insert_token, new_token, read_tokens, token_row


def create(name: str, role: Role, projects: list[str], database: str | None, data_dir: Path | None) -> None:
    """Create a token and print it; without projects it is bound to none. Raises Failure."""
    name = name.strip()
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        wanted = f"1 to {MAX_NAME} printable characters"
        raise Failure(f"the name of a token has {wanted}; give it after create", BAD_ARGUMENTS)
    scope = ProjectScope.of(projects or None)
    if not all(1 <= len(project) <= MAX_NAME for project in projects):
        raise Failure(f"the name of a project has 1 to {MAX_NAME} characters", BAD_ARGUMENTS)
    with _opened(database, data_dir) as connection:
        token, secret = new_token(name, role, scope)
        insert_token(connection, token, _actor())
        stored_in = connection.engine.url.render_as_string(hide_password=True)
    where = f" in {plain(scope.words)}" if projects else ""
    print(f"Stored in {stored_in}.", file=sys.stderr)
    print(f"The token {name!r} has the role {role}{where}. It is shown only once:", file=sys.stderr, flush=True)
    print(secret)


def show(as_json: bool, database: str | None, data_dir: Path | None) -> None:
    """List the tokens without their secrets. Raises Failure."""
    with _opened(database, data_dir) as connection:
        tokens = read_tokens(connection)
    if as_json:
        print_json([token_row(one) for one in tokens])
        return
    if not tokens:
        print("No tokens.")
        return
    columns = [
        Column("id"),
        Column("name"),
        Column("role"),
        Column("projects"),
        Column("created", 1),
        Column("last used", 1),
    ]
    rows = [
        [
            one.id,
            plain(one.name),
            one.role,
            "all" if one.scope.names is None else plain(one.scope.words),
            ago(one.created_ns / 1e9),
            _last_use(one.last_used_ns),
        ]
        for one in tokens
    ]
    print_table(console(), columns, rows)


def revoke(text: str, database: str | None, data_dir: Path | None) -> None:
    """Revoke a token by its id or its name. Raises Failure."""
    with _opened(database, data_dir) as connection:
        tokens = read_tokens(connection)
        found = [one for one in tokens if text in (one.id, one.name)]
        if not found:
            raise Failure(f"there is no token {text!r}; vramscope token list shows them", BAD_ARGUMENTS)
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise Failure(f"{len(found)} tokens are named {text!r}; give one of their ids: {ids}", BAD_ARGUMENTS)
        delete_token(connection, found[0], _actor())
    print(f"Revoked the token {found[0].name!r} with the role {found[0].role}.")


@contextlib.contextmanager
def _opened(database: str | None, data_dir: Path | None) -> Iterator[Connection]:
    """A connection to the server's database, in a transaction. Raises Failure."""
    url = with_driver(server_settings(database, data_dir)[1])
    shown = url.render_as_string(hide_password=True)
    engine = None
    try:
        engine = sa.create_engine(url, connect_args={"timeout": 10} if url.get_backend_name() == "sqlite" else {})
        with engine.begin() as connection:
            version = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
            if version != HEAD:
                raise Failure(
                    f"the database has the tables of another version ({version}, not {HEAD}); start the server once",
                    BAD_ARGUMENTS,
                )
            yield connection
    except (SQLAlchemyError, ModuleNotFoundError) as error:
        raise Failure(f"{shown} cannot be used: {str(error).splitlines()[0]}", BAD_ARGUMENTS) from None
    finally:
        if engine is not None:
            engine.dispose()


def _actor() -> Actor:
    """The user of this command, as the audit log names it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, in a container
        user = str(os.getuid())
    return Actor(f"vramscope token ({user})")


def _last_use(time_ns: int | None) -> str:
    return "never" if time_ns is None else ago(time_ns / 1e9)
