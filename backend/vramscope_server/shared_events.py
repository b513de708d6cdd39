"""Live events of several server processes on one PostgreSQL database.

Each process stores the events of its own commits a few times a second while a page of any process watches; every process
answers from the table. In between, the newest few seconds are kept, so that a page that begins to watch misses nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from vramscope_server.answers.runs import RunRow
from vramscope_server.live_events import EVERY_SECONDS, Event, LiveEvents
from vramscope_server.store.database import Database
from vramscope_server.store.ingest_state import BatchNews
from vramscope_server.store.project_scope import ALL_PROJECTS, ProjectScope
from vramscope_server.store.shared_news import SharedEvent, delete_old_news, is_watched, miss_news, news_since, put_news

log = logging.getLogger("vramscope_server.live_events")

CHECK_SECONDS: Final = 1.0
"""Time between two checks whether a page of any process watches."""
RETAINED_SECONDS: Final = 5.0
"""Time for which commits are kept while nobody watches; longer than CHECK_SECONDS."""
MOST_RETAINED: Final = 2000
_CLEAN_SECONDS: Final = 20.0


class SharedEvents(LiveEvents):
    """Start with :meth:`open`, end with :meth:`close`."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._retained: deque[tuple[float, Sequence[BatchNews], Sequence[RunRow]]] = deque(maxlen=MOST_RETAINED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vramscope-live", daemon=True)

    def open(self) -> None:
        """Start the thread that stores events."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def publish(self, stored: Sequence[BatchNews], runs: Sequence[RunRow]) -> None:
        """Keep what the writer has committed until the thread stores it, or for some seconds."""
        with self._lock:
            self._retained.append((time.monotonic(), stored, runs))

    def start(self) -> int:
        """Cursor for a page that starts to poll."""
        with self._database.changing() as connection:
            return news_since(connection, 0, frozenset(), time.time_ns())[1]

    def since(
        self, after: int, runs: frozenset[str], scope: ProjectScope = ALL_PROJECTS
    ) -> tuple[list[Event], int, bool]:
        """Events of a scope after a cursor, the new cursor, and whether events in between are lost."""
        with self._database.changing() as connection:
            found, last, missed = news_since(connection, after, runs, time.time_ns())
        events = [Event(one.moment, one.kind, one.project, one.run, one.data) for one in found]
        return [event for event in events if scope.has(event.project)], last, missed

    def _run(self) -> None:
        checked_at = cleaned_at = 0.0
        watched = missed = False
        while not self._stop.wait(EVERY_SECONDS):
            now = time.monotonic()
            try:
                if now - checked_at >= CHECK_SECONDS:
                    checked_at = now
                    with self._database.reader() as connection:
                        watched = is_watched(connection, time.time_ns())
                events = self._taken(now, watched)
                if missed or events or (watched and now - cleaned_at > _CLEAN_SECONDS):
                    with self._database.changing() as connection:
                        put_news(connection, events, time.time_ns())
                        if missed:
                            miss_news(connection, time.time_ns())
                        if now - cleaned_at > _CLEAN_SECONDS:
                            cleaned_at = now
                            delete_old_news(connection, time.time_ns())
                    missed = False
            except SQLAlchemyError as error:
                missed = True
                log.warning("live events were not stored: %s", str(error).splitlines()[0])

    def _taken(self, now: float, watched: bool) -> list[SharedEvent]:
        """Events of the retained commits, if somebody watches."""
        with self._lock:
            if not watched:
                while self._retained and now - self._retained[0][0] > RETAINED_SECONDS:
                    self._retained.popleft()
                return []
            while self._retained:
                _, stored, runs = self._retained.popleft()
                self._add_pending(stored, runs)
            self._encode_pending()
            events = [SharedEvent(event.kind, event.project, event.run, event.data) for event in self._ring]
            self._ring.clear()
            self._ring_bytes = 0
            return events
