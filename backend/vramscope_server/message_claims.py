"""Messages of several server processes on one database: each is sent by one of them, and by another if that one dies."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.answers.runs import RunRow
from vramscope_server.store.database import Database
from vramscope_server.store.sent_messages import claim, release_abandoned, settle, unsent_rows

log = logging.getLogger("vramscope_server.notifications")

EVERY_SECONDS: Final = 10.0
"""Time between two searches for messages of processes that died."""
RECENT_NS: Final = 180_000_000_000
"""Runs that were silent for longer are not checked again."""


class MessageClaims:
    """Claims in the database. With SQLite there is one process, which needs none."""

    def __init__(self, database: Database, leads: Callable[[], bool]) -> None:
        self._database = database
        self._leads = leads
        self._is_shared = database.kind == "postgresql"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, check: Callable[[RunRow], None]) -> None:
        """Pass rows of runs to ``check`` whose messages a process may have left unsent, while this process leads."""
        if self._is_shared:
            self._thread = threading.Thread(target=self._run, args=(check,), name="vramscope-claims", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5)

    def take(self, run_id: str, kind: str) -> bool:
        """Whether this process sends the message. Raises SQLAlchemyError."""
        if not self._is_shared:
            return True
        with self._database.changing() as connection:
            return claim(connection, run_id, kind, self._database.number, time.time_ns())

    def settle(self, run_id: str, kind: str) -> None:
        """Note that the message was sent or given up."""
        if self._is_shared:
            try:
                with self._database.changing() as connection:
                    settle(connection, run_id, kind)
            except SQLAlchemyError as error:  # it is sent again if this process ends
                log.warning("a sent message was not noted: %s", str(error).splitlines()[0])

    def _run(self, check: Callable[[RunRow], None]) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            if not self._leads():
                continue
            try:
                with self._database.changing() as connection:
                    released = release_abandoned(connection)
                    rows = unsent_rows(connection, time.time_ns() - RECENT_NS, released)
            except SQLAlchemyError as error:
                log.warning("unsent messages were not searched: %s", str(error).splitlines()[0])
                continue
            for row in rows:
                check(row)
