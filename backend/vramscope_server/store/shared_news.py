"""Live events that several server processes share, in PostgreSQL.

Each event has the number of the transaction that stored it, its moment. A page has seen all events up to its cursor: the
number below which every transaction has ended. So each event reaches a page once, whichever process stores it and
whichever answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.tables import news, preferences

KEPT_NS: Final = 60_000_000_000
"""Age at which events are deleted, and time after which nobody watches if no page has asked."""
_NOTE_EVERY_NS: Final = 10_000_000_000
_WATCH: Final = "live_watch"
_NOW: Final = sa.text("SELECT CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) - 1")
_MOMENT: Final = sa.text("SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)")


@dataclass(frozen=True, slots=True)
class SharedEvent:
    """One event, encoded as JSON. ``run`` is None for events that every page of the project gets."""

    kind: str
    project: str
    run: str | None
    data: bytes
    moment: int = 0


@dataclass(frozen=True, slots=True)
class _Watch:
    asked_ns: int
    floor: int
    """Events up to it may not have been stored, because no page asked."""


def put_news(connection: Connection, events: Sequence[SharedEvent], now_ns: int) -> None:
    """Store events with the moment of the open transaction, and delete old ones."""
    moment = connection.execute(_MOMENT).scalar()
    rows = [
        {"moment": moment, "time_ns": now_ns, "kind": e.kind, "project": e.project, "run": e.run, "data": e.data}
        for e in events
    ]
    if rows:
        connection.execute(news.insert(), rows)


def delete_old_news(connection: Connection, now_ns: int) -> None:
    """Delete old events. The newest stays: a page recognises by the oldest one whether it missed some."""
    newest = sa.select(sa.func.max(news.c.key)).scalar_subquery()
    connection.execute(news.delete().where(news.c.time_ns < now_ns - KEPT_NS, news.c.key < newest))


def miss_news(connection: Connection, now_ns: int) -> None:
    """Let every page that asked before this transaction read its data again, because events could not be stored."""
    moment = int(connection.execute(_MOMENT).scalar() or 0)
    connection.execute(_PUT_WATCH, {"name": _WATCH, "value": {"asked_ns": now_ns, "floor": moment}})


def is_watched(connection: Connection, now_ns: int) -> bool:
    """Whether a page has asked recently."""
    watch = _watch(connection)
    return watch is not None and now_ns - watch.asked_ns < KEPT_NS


def news_since(
    connection: Connection, after: int, runs: frozenset[str], now_ns: int
) -> tuple[list[SharedEvent], int, bool]:
    """Events after a cursor, in order, the new cursor, and whether events in between are lost. Notes that a page asks."""
    last = int(connection.execute(_NOW).scalar() or 0)
    floor = _note_watch(connection, last, now_ns)
    oldest = connection.execute(sa.select(sa.func.min(news.c.moment))).scalar()
    missed = after < floor or after > last or (oldest is not None and _deleted_before(connection, after, int(oldest)))
    if missed:
        return [], last, True
    query = sa.select(news.c.kind, news.c.project, news.c.run, news.c.data, news.c.moment)
    query = query.where(
        news.c.moment > after, news.c.moment <= last, sa.or_(news.c.run.is_(None), news.c.run.in_(runs))
    )
    found = connection.execute(query.order_by(news.c.moment, news.c.key))
    return [SharedEvent(*row) for row in found], last, False


def _deleted_before(connection: Connection, after: int, oldest: int) -> bool:
    """Whether events between the cursor and the oldest event may have been deleted: that one is the first of old ones."""
    if after >= oldest:
        return False
    first = connection.execute(sa.select(news.c.key).where(news.c.moment == oldest).order_by(news.c.key)).scalar()
    return first != 1


def _note_watch(connection: Connection, last: int, now_ns: int) -> int:
    """Note that a page asks. Returns the floor."""
    watch = _watch(connection)
    if watch is not None and now_ns - watch.asked_ns < _NOTE_EVERY_NS:
        return watch.floor
    goes_on = watch is not None and now_ns - watch.asked_ns < KEPT_NS
    floor = watch.floor if watch is not None and goes_on else last
    value = {"asked_ns": now_ns, "floor": floor}
    connection.execute(_PUT_WATCH, {"name": _WATCH, "value": value})
    return floor


def _watch(connection: Connection) -> _Watch | None:
    value = connection.execute(sa.select(preferences.c.value).where(preferences.c.name == _WATCH)).scalar()
    return None if value is None else _Watch(**value)


_PUT_WATCH: Final = sa.text(
    "INSERT INTO preferences (name, value) VALUES (:name, :value) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
).bindparams(sa.bindparam("value", type_=sa.JSON))
