"""Access tokens: create, revoke, recognize. Only their hashes are stored."""

from __future__ import annotations

import contextlib
import hmac
import threading
import time
from collections import deque
from concurrent.futures import Executor, TimeoutError
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.api.problems import TooManyFailures, Unauthorized
from vramscope_server.store.audit_log import Actor
from vramscope_server.store.database import Database
from vramscope_server.store.project_scope import ALL_PROJECTS, ProjectScope
from vramscope_server.store.token_rows import (
    Role,
    Token,
    delete_token,
    hash_of,
    insert_first_token,
    insert_token,
    new_token,
    read_tokens,
    set_last_use,
)
from vramscope_server.store.writer import QueueFull, StorageTrouble, Writer, WriterClosed

MAX_FAILURES: Final = 20
FAILURE_WINDOW_SECONDS: Final = 60.0
REREAD_SECONDS: Final = 5.0
"""Time after which tokens are read again: ``vramscope token`` changes them beside the server."""
NEW_TOKEN_SECONDS: Final = 1.0
"""Maximum wait for the database before an unknown token is refused. All other requests wait with it."""
SERVER: Final = Actor("vramscope server")
_USED_EVERY_NS: Final = 60 * 1_000_000_000


class Tokens:
    """Tokens of a server, in memory beside the database."""

    def __init__(self, database: Database, writer: Writer, executor: Executor) -> None:
        """``executor`` reads the tokens again while requests go on."""
        self._database = database
        self._writer = writer
        self._executor = executor
        self._failures: dict[str, deque[float]] = {}
        self._known: dict[str, Token] = {}
        self._read_at = 0.0
        self._changing = threading.Lock()
        """Held while tokens are read or changed: what was read before a change must not replace it."""
        self._read()

    def make_first(self) -> str | None:
        """Create a token with the role admin if there is none; returns it, to be shown once."""
        if self._known:
            return None
        plain = self._writer.do(lambda connection, _: insert_first_token(connection, SERVER)).result(30)
        self._read()
        return plain

    def make(
        self, name: str, role: Role, scope: ProjectScope = ALL_PROJECTS, actor: Actor = SERVER
    ) -> tuple[Token, str]:
        """A new token: the stored row, and the plain text, which is not stored. Blocks until it is stored."""
        token, plain = new_token(name, role, scope)
        with self._changing:
            self._writer.do(lambda connection, _: insert_token(connection, token, actor)).result(30)
            self._known[token.id] = token
        return token, plain

    def delete(self, token_id: str, scope: ProjectScope = ALL_PROJECTS, actor: Actor = SERVER) -> None:
        """Revoke a token at once. Raises LookupError, also for a token of projects that the scope has not."""
        known = next((token for token in self.listed() if token.id == token_id), None)
        if known is None or not scope.covers(known.scope):
            raise LookupError(token_id)
        with self._changing:
            if not self._writer.do(lambda connection, _: delete_token(connection, known, actor)).result(30):
                raise LookupError(token_id)
            self._known.pop(token_id, None)

    def find(self, plain: str) -> Token | None:
        """Token with this text; compares with all of them in constant time."""
        found = self._find(plain)
        if time.monotonic() - self._read_at > REREAD_SECONDS:
            self._read_at = time.monotonic()
            reading = self._executor.submit(self._read_if_possible)
            if found is None:  # it may be new
                with contextlib.suppress(TimeoutError):
                    reading.result(NEW_TOKEN_SECONDS)
                found = self._find(plain)
        if found is not None:
            self._note_use(found)
        return found

    def _find(self, plain: str) -> Token | None:
        hashed = hash_of(plain)
        found = None
        for token in list(self._known.values()):
            if hmac.compare_digest(token.sha256, hashed):
                found = token
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
        raise Unauthorized(
            "This server has no such token. It was mistyped, revoked, or made for another server.",
            headers={"WWW-Authenticate": "Bearer"},
        )

    def listed(self) -> list[Token]:
        """All tokens, the oldest first."""
        self._read()
        return sorted(self._known.values(), key=lambda token: token.created_ns)

    def _read_if_possible(self) -> None:
        with contextlib.suppress(SQLAlchemyError):  # known tokens stay valid
            self._read()

    def _read(self) -> None:
        with self._changing:
            with self._database.reader() as connection:
                stored = {token.id: token for token in read_tokens(connection)}
            for token in stored.values():  # a use may not be stored yet
                if token.id in self._known:
                    token.last_used_ns = self._known[token.id].last_used_ns
            self._known = stored
        self._read_at = time.monotonic()

    def _note_use(self, token: Token) -> None:
        now = time.time_ns()
        if token.last_used_ns is not None and now - token.last_used_ns < _USED_EVERY_NS:
            return
        token.last_used_ns = now
        with contextlib.suppress(QueueFull, StorageTrouble, WriterClosed):
            self._writer.do(lambda connection, _: set_last_use(connection, token.id, now))
