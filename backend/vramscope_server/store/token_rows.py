"""Rows of access tokens. The server and ``vramscope token`` read and write them."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import Final, Literal, get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.answers.server import TokenRow
from vramscope_server.store.audit_log import Action, Actor, Done, differences, insert_entry
from vramscope_server.store.list_row import seconds
from vramscope_server.store.processes import Lock, lock_all
from vramscope_server.store.project_scope import ALL_PROJECTS, ProjectScope
from vramscope_server.store.tables import tokens as table

Role = Literal["read", "write", "admin"]
"""Each role may do what the ones before it may: look at everything; send runs and change them; delete, and make tokens.
All of that in the projects of the token."""
ROLES: Final[tuple[Role, ...]] = get_args(Role)
TOKEN_PREFIX: Final = "vrs_"
"""First characters of each token."""


@dataclass(slots=True)
class Token:
    """A stored token: only its hash."""

    id: str
    name: str
    sha256: str
    role: Role
    scope: ProjectScope
    created_ns: int
    last_used_ns: int | None


def token_row(token: Token) -> TokenRow:
    """A token as lists show it, without its hash."""
    return TokenRow(
        id=token.id,
        name=token.name,
        role=token.role,
        projects=projects_of(token.scope),
        created_seconds=seconds(token.created_ns),
        last_used_seconds=seconds(token.last_used_ns),
    )


def projects_of(scope: ProjectScope) -> list[str] | None:
    """Names of a scope as answers and the database have them."""
    return None if scope.names is None else list(scope.names)


def new_token(name: str, role: Role, scope: ProjectScope) -> tuple[Token, str]:
    """A new token and its plain text, which is stored nowhere. :func:`insert_token` stores the token."""
    plain = TOKEN_PREFIX + secrets.token_urlsafe(32)
    return Token(secrets.token_hex(8), name, hash_of(plain), role, scope, time.time_ns(), None), plain


def hash_of(plain: str) -> str:
    """The hash that is stored. Tokens are random, 256 bits: a slow hash would protect nothing."""
    return hashlib.sha256(plain.encode()).hexdigest()


def read_tokens(connection: Connection) -> list[Token]:
    """All tokens, the oldest first."""
    found = connection.execute(sa.select(table).order_by(table.c.created_ns)).mappings()
    return [
        Token(
            row["id"],
            row["name"],
            row["sha256"],
            row["role"],
            ProjectScope.of(row["projects"]),
            row["created_ns"],
            row["last_used_ns"],
        )
        for row in found
    ]


def insert_token(connection: Connection, token: Token, actor: Actor) -> None:
    """Store a new token, and who made it."""
    columns = ("id", "name", "sha256", "role", "created_ns", "last_used_ns")
    values = {name: getattr(token, name) for name in columns}
    connection.execute(table.insert(), [values | {"projects": projects_of(token.scope)}])
    given = differences({}, {"role": token.role, "projects": token.scope.words})
    insert_entry(connection, actor, Done(Action.token_created, token.id, token.name, changes=given))


def insert_first_token(connection: Connection, actor: Actor) -> str | None:
    """Store a token with the role admin if there is none, in an open transaction. Returns its plain text, or None."""
    lock_all(connection, Lock.first_token, ["first"])
    if read_tokens(connection):
        return None
    token, plain = new_token("first", "admin", ALL_PROJECTS)
    insert_token(connection, token, actor)
    return plain


def delete_token(connection: Connection, token: Token, actor: Actor) -> int:
    """Delete a token, and store who did. Returns the number of rows: 1, or 0 if there is none."""
    deleted = connection.execute(table.delete().where(table.c.id == token.id)).rowcount
    if deleted:
        insert_entry(connection, actor, Done(Action.token_revoked, token.id, token.name))
    return deleted


def set_last_use(connection: Connection, token_id: str, last_used_ns: int) -> None:
    """Store the time of a use."""
    connection.execute(table.update().where(table.c.id == token_id).values(last_used_ns=last_used_ns))
