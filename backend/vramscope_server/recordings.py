"""Recordings opened for analysis: read from the store once, and kept while they are looked at."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, TypeVar

from vramscope.window import unpack

from .analysis.history.moments import Moments, moments_of
from .analysis.history.segment_map import Row
from .analysis.history.trace import Trace, from_window, layout_at
from .store.artifacts import read_artifact
from .store.database import Database

T = TypeVar("T")

SHELF_EVENTS: Final = 2_000_000
"""Recordings are kept open until they have more events together, some 200 bytes each; the newest always is."""
_KEPT_RESULTS: Final = 12


class Opened:
    """One recording as a trace, with what was made of it lately."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._results: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        self._lock = threading.RLock()

    @cached_property
    def moments(self) -> Moments:
        """Where to look first."""
        return moments_of(self.trace)

    def row(self, event: int) -> Row:
        """What was held after an event, end to end. Raises IndexError where there is no such event."""
        return self.once(("row", event), lambda: Row(layout_at(self.trace, event)))

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What ``make`` gives, made once for a key while it is among the newest; one at a time for a recording."""
        with self._lock:
            if key not in self._results:
                self._results[key] = make()
            self._results.move_to_end(key)
            while len(self._results) > _KEPT_RESULTS:
                self._results.popitem(last=False)
            result: T = self._results[key]
            return result


class Shelf:
    """The recordings that are open. Any thread may ask."""

    def __init__(self, database: Database, *, events: int = SHELF_EVENTS) -> None:
        self._database = database
        self._events = events
        self._open: OrderedDict[str, Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}

    def open(self, ident: str) -> Opened:
        """The recording of this id, which must be whole. 0.5 s and some 200 bytes an event for a million of them.

        Raises window.BadWindow if its bytes are no recording.
        """
        with self._lock:
            turn = self._opening.setdefault(ident, threading.Lock())
        with turn:  # who comes second waits for the first, and finds it open
            with self._lock:
                if ident in self._open:
                    self._open.move_to_end(ident)
                    return self._open[ident]
            with self._database.reader() as connection:
                data = read_artifact(connection, ident)
            opened = Opened(from_window(unpack(data)))
            with self._lock:
                self._open[ident] = opened
                self._opening.pop(ident, None)
                while len(self._open) > 1 and self._total() > self._events:
                    self._open.popitem(last=False)
            return opened

    def close(self, ident: str) -> None:
        """It was deleted."""
        with self._lock:
            self._open.pop(ident, None)

    def _total(self) -> int:
        return sum(len(opened.trace.events) for opened in self._open.values())
