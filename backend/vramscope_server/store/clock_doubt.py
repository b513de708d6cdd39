"""Doubts a clock that went ahead, while the server ran or between two starts: a wrong clock must not make runs old.

What the clock showed is kept in the database, so that a server that starts with a wrong clock notices it too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.analysis.number_format import duration
from vramscope_server.store.tables import preferences, runs

log = logging.getLogger("vramscope_server.retention")

NAME: Final = "clock"
HOUR_NS: Final = 3_600_000_000_000
DAY_NS: Final = 24 * HOUR_NS
JUMP_NS: Final = HOUR_NS
"""A larger difference from the time that passed is a jump."""
PAUSE_NS: Final = DAY_NS
"""A server may have been stopped for this long without a doubt: a clock that is wrong by less makes runs hardly older."""
DOUBT_NS: Final = DAY_NS
"""Time for which a clock that went ahead is doubted: a wrong one would delete all, and a day is long enough to see it."""


class ClockRecord(msgspec.Struct, frozen=True):
    """What is kept about the clock."""

    seen_ns: int
    """Time that it showed last."""
    believed_ns: int
    """Time by which ages were counted then; earlier than ``seen_ns`` while the clock is doubted."""
    left_ns: int = 0
    """Time for which it is doubted still, counted while the server runs."""
    in_pause: bool = False
    """Whether it went ahead while no server used the database. Then it may be right: the server was stopped for so long."""


def passed_ns() -> int:
    """Return the time since some moment, a sleep of the machine included where the system counts it (Linux)."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic_ns() if boot is None else time.clock_gettime_ns(boot)


class ClockDoubt:
    """Counts the time by which runs age. Used by one thread; others read ``words``.

    words  what is wrong with the clock, in sentences for administrators; None: nothing is known to be
    """

    def __init__(self, clock: Callable[[], int] = time.time_ns, passed: Callable[[], int] = passed_ns) -> None:
        self._clock, self._passed = clock, passed
        self._record: ClockRecord | None = None
        self._mark_ns = self._latest_ns = 0
        self.words: str | None = None

    def read(self, connection: Connection) -> int:
        """Read the clock. Returns the time by which ages are counted: never one that a doubted clock shows."""
        now_ns, mark_ns = self._clock(), self._passed()
        before = self._record
        if before is None:
            record = _after_pause(_stored(connection) or _newest(connection) or ClockRecord(now_ns, now_ns), now_ns)
        else:
            record = _after(before, now_ns, mark_ns - self._mark_ns)
        self._latest_ns = max(self._latest_ns, record.believed_ns)
        if now_ns - record.believed_ns <= JUMP_NS or not record.left_ns:
            record = ClockRecord(now_ns, now_ns)
        self._record, self._mark_ns = msgspec.structs.replace(record, seen_ns=now_ns), mark_ns
        self._say(now_ns, record, before)
        return record.believed_ns

    def keep(self, connection: Connection) -> None:
        """Store what :meth:`read` found, for the next start."""
        if self._record is not None:
            connection.execute(sa.delete(preferences).where(preferences.c.name == NAME))
            connection.execute(sa.insert(preferences).values(name=NAME, value=msgspec.to_builtins(self._record)))

    def _say(self, now_ns: int, record: ClockRecord, before: ClockRecord | None) -> None:
        ahead_ns, behind_ns = now_ns - record.believed_ns, self._latest_ns - now_ns
        had = self.words
        if record.left_ns:
            self.words = _ahead(ahead_ns, record)
        elif behind_ns > JUMP_NS:
            self.words = f"The clock is {duration(behind_ns / 1e9)} behind a time that it showed before."
        else:
            self.words = None
        if self.words is not None and (had is None or (before is not None and record.left_ns > before.left_ns)):
            log.warning("%s If it is wrong now, correct it.", self.words)


def stored_words(connection: Connection) -> str | None:
    """What the process that counts the ages has found, for the others of its database."""
    record = _stored(connection)
    return _ahead(record.seen_ns - record.believed_ns, record) if record is not None and record.left_ns else None


def _ahead(ahead_ns: int, record: ClockRecord) -> str:
    ahead, left = duration(ahead_ns / 1e9), duration(record.left_ns / 1e9)
    where = f"shows {ahead} more than when this database was last used" if record.in_pause else f"went ahead by {ahead}"
    return f"The clock {where}. For {left} no run is deleted because of it."


def _after_pause(record: ClockRecord, now_ns: int) -> ClockRecord:
    """What is believed at the start of a server. How long it was stopped only the clock knows."""
    pause_ns = now_ns - record.seen_ns
    if pause_ns > PAUSE_NS:
        return ClockRecord(record.seen_ns, record.seen_ns, DOUBT_NS, in_pause=True)
    return msgspec.structs.replace(record, believed_ns=record.believed_ns + max(0, pause_ns))


def _after(record: ClockRecord, now_ns: int, went_ns: int) -> ClockRecord:
    """What is believed after so long."""
    expected_ns = record.seen_ns + went_ns
    believed_ns = record.believed_ns + went_ns
    if now_ns - expected_ns > JUMP_NS:
        return ClockRecord(expected_ns, believed_ns, DOUBT_NS)
    return ClockRecord(expected_ns, believed_ns, max(0, record.left_ns - went_ns), record.in_pause)


def _stored(connection: Connection) -> ClockRecord | None:
    value = connection.execute(sa.select(preferences.c.value).where(preferences.c.name == NAME)).scalar()
    return None if value is None else msgspec.convert(value, ClockRecord)


def _newest(connection: Connection) -> ClockRecord | None:
    """Of a database without a record: the newest time that a run was seen."""
    seen_ns = connection.execute(sa.select(sa.func.max(runs.c.last_seen_ns))).scalar()
    return None if seen_ns is None else ClockRecord(int(seen_ns), int(seen_ns))
