"""Access tokens: create, revoke, recognize. Only their hashes are stored."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

import sqlalchemy as sa

from vramscope_server.api.problems import TooManyFailures, Unauthorized
from vramscope_server.store.database import Database
from vramscope_server.store.list_row import seconds
from vramscope_server.store.tables import tokens as table
from vramscope_server.store.writer import QueueFull, StorageTrouble, Writer, WriterClosed

SCOPES: Final = ("ingest", "read")
MAX_FAILURES: Final = 20
FAILURE_WINDOW_SECONDS: Final = 60.0
_USED_EVERY_NS: Final = 60 * 1_000_000_000


@dataclass(slots=True)
class Token:
    """A stored token: only its hash."""

    id: str
    name: str
    sha256: str
    scopes: tuple[str, ...]
    created_ns: int
    last_used_ns: int | None


class ListedToken(TypedDict):
    """A token without its secret."""

    id: str
    name: str
    scopes: list[str]
    created_seconds: float | None
    last_used_seconds: float | None


class Tokens:
    """Tokens of a server, in memory beside the database."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._writer = writer
        self._failures: dict[str, deque[float]] = {}
        with database.reader() as connection:
            found = connection.execute(sa.select(table)).mappings().all()
        self._known = {
            row["id"]: Token(
                row["id"], row["name"], row["sha256"], tuple(row["scopes"]), row["created_ns"], row["last_used_ns"]
            )
            for row in found
        }

    def make_first(self) -> str | None:
        """Create a token for all scopes if there is none; returns it, to be shown once."""
        if self._known:
            return None
        return self.make("first", SCOPES)[1]

    def make(self, name: str, scopes: Sequence[str]) -> tuple[Token, str]:
        """A new token: the stored row, and the plain text, which is not stored. Blocks until it is stored."""
        plain = "vrs_" + secrets.token_urlsafe(32)
        token = Token(secrets.token_hex(8), name, _hash(plain), tuple(scopes), time.time_ns(), None)
        values = {
            "id": token.id,
            "name": name,
            "sha256": token.sha256,
            "scopes": list(scopes),
            "created_ns": token.created_ns,
        }
        self._writer.do(lambda connection, _: connection.execute(table.insert(), [values])).result(30)
        self._known[token.id] = token
        return token, plain

    def delete(self, token_id: str) -> None:
        """Revoke a token at once. Raises LookupError."""
        if token_id not in self._known:
            raise LookupError(token_id)
        self._writer.do(lambda connection, _: connection.execute(table.delete().where(table.c.id == token_id))).result(
            30
        )
        self._known.pop(token_id, None)

    def find(self, plain: str) -> Token | None:
        """Token with this text; compares with all of them in constant time."""
        hashed = _hash(plain)
        found = None
        for token in self._known.values():
            if hmac.compare_digest(token.sha256, hashed):
                found = token
        if found is not None:
            self._note_use(found)
        return found

    def identify(self, address: str, plain: str) -> Token:
        """Token, or Unauthorized; TooManyFailures after many wrong tokens from the same address.

        A valid token is always accepted: behind a proxy, or on a shared node, all callers have one address, and a
        training with an old token would lock all of them out. A token of 256 bits cannot be guessed.
        """
        token = self.find(plain)
        if token is not None:
            return token
        failures = self._failures.get(address)
        now = time.monotonic()
        while failures and now - failures[0] > FAILURE_WINDOW_SECONDS:
            failures.popleft()
        if failures and len(failures) >= MAX_FAILURES:
            raise TooManyFailures("Too many wrong tokens. Retry in a minute.", headers={"Retry-After": "60"})
        if len(self._failures) > 10_000:
            self._failures.clear()
        self._failures.setdefault(address, deque(maxlen=MAX_FAILURES)).append(now)
        raise Unauthorized("Unknown token.", headers={"WWW-Authenticate": "Bearer"})

    def _note_use(self, token: Token) -> None:
        now = time.time_ns()
        if token.last_used_ns is not None and now - token.last_used_ns < _USED_EVERY_NS:
            return
        token.last_used_ns = now
        change = table.update().where(table.c.id == token.id).values(last_used_ns=now)
        with contextlib.suppress(QueueFull, StorageTrouble, WriterClosed):
            self._writer.do(lambda connection, _: connection.execute(change))

    def listed(self) -> list[ListedToken]:
        """Tokens without their secrets."""
        return [
            {
                "id": token.id,
                "name": token.name,
                "scopes": list(token.scopes),
                "created_seconds": seconds(token.created_ns),
                "last_used_seconds": seconds(token.last_used_ns),
            }
            for token in sorted(self._known.values(), key=lambda token: token.created_ns)
        ]


def _hash(plain: str) -> str:
    # The tokens are random, 256 bits: a slow hash would protect nothing.
    return hashlib.sha256(plain.encode()).hexdigest()
