"""Deletes old runs, by age and by size, and returns their space. Also deletes old entries of the audit log.

Live, pinned and baseline runs are never deleted. Ages do not follow a clock that is doubted (clock_doubt.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.audit_log import Action, Actor, Done, delete_old, insert_entry
from vramscope_server.store.clock_doubt import ClockDoubt, passed_ns
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import IngestState
from vramscope_server.store.run_queries import find_run
from vramscope_server.store.tables import runs
from vramscope_server.store.writer import QueueFull, StorageTrouble, Writer, WriterClosed

log = logging.getLogger("vramscope_server.retention")

RETENTION: Final = Actor("retention")
_VACUUM_PAGES = 2000
"""Pages that are returned at once: about 8 MB, ten milliseconds of the writer."""
_HOUR_SECONDS: Final = 3600.0
_FIRST_NS: Final = 1_735_689_600_000_000_000
"""Start of 2025. vramscope is younger: a run with an earlier time came while the server's clock was wrong."""


class Retention:
    """Checks once a minute. ``days`` and ``bytes`` of None keep everything. ``hourly`` deletes what lies elsewhere."""

    def __init__(
        self,
        database: Database,
        writer: Writer,
        *,
        days: float | None,
        max_bytes: int | None,
        every_seconds: float = 60.0,
        audit_entries: int = 50_000,
        hourly: Callable[[], None] | None = None,
        clock: Callable[[], int] = time.time_ns,
        passed: Callable[[], int] = passed_ns,
    ) -> None:
        self._database = database
        self._writer = writer
        self._days = days
        self._bytes = max_bytes
        self._every = every_seconds
        self._audit_entries = audit_entries
        self._hourly = hourly
        self._hour_ended = 0.0
        self.clock = ClockDoubt(clock, passed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(self._every):
            if not self._writer.leads:
                continue
            try:
                self.apply()
                self._delete_hourly()
            except (StorageTrouble, QueueFull, WriterClosed):
                pass
            except Exception:  # tried again a minute later; the thread must go on
                log.exception("old runs were not deleted")

    def apply(self) -> list[str]:
        """Delete what exceeds the limits, now. Returns the identifiers of the deleted runs. Blocks until it is done."""
        deleted: list[str] = []
        with self._database.reader() as connection:
            now_ns = self.clock.read(connection)
        if self._days is not None:
            for run_id in self._older(now_ns, now_ns - int(self._days * 86_400e9)):
                deleted += self._delete(run_id)
        if self._bytes is not None:
            while not self._stop.is_set() and self._used() > self._bytes:
                oldest = [run_id for run_id in self._silent() if run_id not in deleted]
                if not oldest or not (gone := self._delete(oldest[0])):
                    break
                deleted += gone
        if self._database.read_only is None:
            self._writer.do(self._maintain).result(60)
        if deleted:
            log.info("deleted %d old runs", len(deleted))
        if self._database.kind == "sqlite" and self._database.read_only is None:
            self._give_back()
        return deleted

    def _maintain(self, connection: Connection, _: IngestState) -> None:
        delete_old(connection, self._audit_entries)
        self.clock.keep(connection)

    def _delete_hourly(self) -> None:
        if self._hourly is not None and time.monotonic() >= self._hour_ended:
            self._hour_ended = time.monotonic() + _HOUR_SECONDS
            self._hourly()

    def _older(self, now_ns: int, before_ns: int) -> list[str]:
        """Runs that were last seen before a time, and before any that was stored earlier and began after it.

        Without the second a run that came while the clock was behind would look old as soon as the clock is right.
        """
        younger = (
            sa.select(sa.func.min(runs.c.key)).where(runs.c.started_ns.between(before_ns, now_ns)).scalar_subquery()
        )
        is_older = runs.c.last_seen_ns.between(_FIRST_NS, before_ns)
        return self._silent(is_older, sa.or_(younger.is_(None), runs.c.key < younger))

    def _silent(self, *conditions: sa.ColumnElement[bool]) -> list[str]:
        """Runs that may be deleted, the oldest first."""
        query = sa.select(runs.c.id).where(runs.c.state != "running", ~runs.c.pinned, ~runs.c.baseline, *conditions)
        with self._database.reader() as connection:
            return list(connection.execute(query.order_by(runs.c.last_seen_ns)).scalars())

    def _delete(self, run_id: str) -> list[str]:
        def work(connection: Connection, state: IngestState) -> None:
            run = find_run(connection, run_id, suggest=False)
            state.delete(connection, run_id)
            insert_entry(connection, RETENTION, Done(Action.run_deleted, run.id, run.name, run.project))

        try:
            self._writer.do(work).result(120)
        except (LookupError, ValueError):  # deleted meanwhile, or live again
            return []
        return [run_id]

    def _used(self) -> int:
        with self._database.reader() as connection:
            return self._database.used_bytes(connection)

    def _give_back(self) -> None:
        while not self._stop.is_set():
            with self._database.reader() as connection:
                free = int(connection.exec_driver_sql("PRAGMA freelist_count").scalar() or 0)
            # Some free pages are kept: merging chunks frees and allocates them all the time.
            if free <= _VACUUM_PAGES:
                return
            self._writer.do(
                lambda connection, _: connection.exec_driver_sql(
                    f"PRAGMA incremental_vacuum({_VACUUM_PAGES})"
                ).fetchall()
            ).result(60)
