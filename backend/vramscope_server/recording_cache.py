"""Recordings opened for analysis: read from the store once, and kept while they are in use."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeVar

from vramscope.protocol.window import unpack
from vramscope_server.analysis.fragmentation.breakdown import parts_of
from vramscope_server.analysis.fragmentation.usable import Parts
from vramscope_server.analysis.timeline.curve import AllocationCurve
from vramscope_server.analysis.timeline.grouping import Grouping
from vramscope_server.analysis.timeline.render_cache import load_pictures
from vramscope_server.analysis.trace.column_store import load
from vramscope_server.analysis.trace.from_window import from_window
from vramscope_server.analysis.trace.notable_events import NotableEvents, notable_events_of
from vramscope_server.analysis.trace.segment_map import LinearLayout
from vramscope_server.analysis.trace.trace import Trace, layout_at
from vramscope_server.store.artifacts import read_artifact
from vramscope_server.store.database import Database

T = TypeVar("T")

SHELF_EVENTS: Final = 2_000_000
"""Maximum number of events of all open recordings, about 230 bytes each; the newest one always stays."""
_KEPT_RESULTS: Final = 12


class OpenRecording:
    """A recording as a trace, with its recent results."""

    def __init__(self, trace: Trace, moments: NotableEvents | None = None, parts: Parts | None = None) -> None:
        self.trace = trace
        if moments is not None:  # under the name that functools.cached_property looks for
            vars(self)["moments"] = moments
        self._results: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
        if parts is not None:
            self._results[("parts",)] = parts
        self._making: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()

    @cached_property
    def moments(self) -> NotableEvents:
        """Events of interest."""
        return notable_events_of(self.trace, self.parts)

    @property
    def parts(self) -> Parts:
        """Parts of reserved memory after each event: 0.5 µs an event the first time, and 32 bytes an event kept.

        Those of a snapshot are on the disk.
        """
        return self.once(("parts",), lambda: parts_of(self.trace))

    def keep(self, pictures: tuple[AllocationCurve, list[Grouping]] | None) -> None:
        """Stored results, under the names that ``api.timeline`` uses."""
        if pictures is not None:
            curve, groupings = pictures
            self._results |= {("curve",): curve} | {("grouping", one.by): one for one in groupings}

    def row(self, event: int) -> LinearLayout:
        """Segments after an event, end to end. Raises IndexError for an unknown event."""
        return self.once(("row", event), lambda: LinearLayout(layout_at(self.trace, event)))

    def once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Result of ``make``, computed once for a key, and kept while it is among the newest of its kind (the key's first
        word).

        Callers of the same key wait for it; callers of other keys do not.
        """
        with self._lock:
            turn = self._making.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._results:
                    self._results.move_to_end(key)
                    kept: T = self._results[key]
                    return kept
            try:
                result = make()
                with self._lock:
                    self._results[key] = result
                    for old in [one for one in self._results if one[0] == key[0]][:-_KEPT_RESULTS]:
                        del self._results[old]
            finally:
                with self._lock:
                    self._making.pop(key, None)
            return result


class RecordingCache:
    """Open recordings. Any thread may call it."""

    def __init__(
        self,
        database: Database,
        columns: Callable[[str], tuple[Path, Path] | None] = lambda ident: None,
        *,
        events: int = SHELF_EVENTS,
    ) -> None:
        """``columns``: folders of a snapshot's device by its recording id, for column_store.load."""
        self._database = database
        self._columns = columns
        self._events = events
        self._open: OrderedDict[str, OpenRecording] = OrderedDict()
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._unpacking = threading.Lock()
        """One at a time: what is small on the wire may take hundreds of megabytes."""

    def open(self, ident: str) -> OpenRecording:
        """Recording with this id, which must be complete: 0.5 s and about 200 bytes an event for a million events.

        That of a snapshot's device is on the disk in columns: a few milliseconds, and no memory before it is read. Raises
        window.BadWindow if its bytes are not a recording, ValueError or OSError if its columns are damaged.
        """
        with self._lock:
            turn = self._opening.setdefault(ident, threading.Lock())
        with turn:  # the second caller waits for the first
            with self._lock:
                if ident in self._open:
                    self._open.move_to_end(ident)
                    return self._open[ident]
            opened = self._opened(ident)
            with self._lock:
                self._open[ident] = opened
                self._opening.pop(ident, None)
                while len(self._open) > 1 and self._total() > self._events:
                    self._open.popitem(last=False)
            return opened

    def _opened(self, ident: str) -> OpenRecording:
        folders = self._columns(ident)
        if folders is not None:
            opened = OpenRecording(*load(*folders))
            opened.keep(load_pictures(folders[0]))
            return opened
        with self._database.reader() as connection:
            data = read_artifact(connection, ident)
        with self._unpacking:
            return OpenRecording(from_window(unpack(data)))

    def close(self, ident: str) -> None:
        """Drop a deleted recording."""
        with self._lock:
            self._open.pop(ident, None)

    def _total(self) -> int:
        return sum(len(opened.trace.events) for opened in self._open.values())
