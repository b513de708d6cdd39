"""The audit log: who changed what, when, and from which address. An entry is stored together with its change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.tables import audit

MAX_TEXT: Final = 500
"""Maximum length of a value before or after a change; the rest is cut off."""


class Action(str, Enum):
    """Kinds of changes."""

    token_created = "token_created"
    token_revoked = "token_revoked"
    run_changed = "run_changed"
    run_moved = "run_moved"
    run_deleted = "run_deleted"
    recording_deleted = "recording_deleted"
    profile_deleted = "profile_deleted"
    snapshot_deleted = "snapshot_deleted"
    session_ended = "session_ended"
    alerts_changed = "alerts_changed"
    message_tested = "message_tested"


_BY_ADMINS: Final = (
    Action.token_created.value,
    Action.token_revoked.value,
    Action.run_deleted.value,
    Action.recording_deleted.value,
    Action.profile_deleted.value,
    Action.snapshot_deleted.value,
    Action.session_ended.value,
)
"""Actions that need the role admin. The role write can make any number of entries of the others."""


class FieldChange(msgspec.Struct, frozen=True):
    """A field that was changed, as text; None: it had no value, or has none now."""

    field: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who made a change."""

    name: str | None
    """Name of the token, or of the part of the server; None where no token was required."""
    token: str | None = None
    """Id of the token."""
    address: str | None = None
    """Address that the request came from; None: from the server's machine."""


@dataclass(frozen=True, slots=True)
class Done:
    """What was done, and to what."""

    action: Action
    subject: str | None = None
    """Identifier of the run, the token, the recording and so on."""
    name: str | None = None
    """Its name at that time."""
    project: str | None = None
    changes: Sequence[FieldChange] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored entry."""

    key: int
    time_ns: int
    actor: Actor
    done: Done


Note = Callable[[Connection], None]
"""Stores an entry in the open transaction of its change."""


def noted(actor: Actor, done: Done) -> Note:
    """A note of a change. Nothing is stored for a change of a run or of settings that changes nothing."""
    changing = done.action in (Action.run_changed, Action.run_moved, Action.alerts_changed)

    def note(connection: Connection) -> None:
        if done.changes or not changing:
            insert_entry(connection, actor, done)

    return note


def insert_entry(connection: Connection, actor: Actor, done: Done) -> None:
    """Store an entry."""
    connection.execute(audit.insert(), [entry_values(actor, done)])


def entry_values(actor: Actor, done: Done) -> dict[str, object]:
    """An entry of now as values of the table's columns."""
    return {
        "time_ns": time.time_ns(),
        "actor": actor.name,
        "token": actor.token,
        "address": actor.address,
        "action": done.action.value,
        "subject": done.subject,
        "name": done.name,
        "project": done.project,
        "changes": msgspec.to_builtins(list(done.changes)),
    }


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[FieldChange]:
    """The fields of ``after`` that differ from those of ``before``."""
    return [
        FieldChange(name, _text(before.get(name)), _text(value))
        for name, value in after.items()
        if before.get(name) != value
    ]


def _text(value: object) -> str | None:
    if value is None:
        return None
    text = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def list_entries(
    connection: Connection, *, limit: int, before: int | None = None, action: Action | None = None
) -> list[Entry]:
    """Newest first; those with a smaller key than ``before``."""
    query = sa.select(audit).order_by(audit.c.key.desc()).limit(limit)
    if before is not None:
        query = query.where(audit.c.key < before)
    if action is not None:
        query = query.where(audit.c.action == action.value)
    return [_entry(row) for row in connection.execute(query).mappings()]


def delete_old(connection: Connection, most_entries: int) -> int:
    """Keep the newest entries, at most `most_entries` of those that need an admin, and as many of the others: those with
    the role write cannot push out the others. Returns the number of deleted ones."""
    deleted = 0
    for group in (audit.c.action.in_(_BY_ADMINS), audit.c.action.not_in(_BY_ADMINS)):
        last = sa.select(audit.c.key).where(group).order_by(audit.c.key.desc()).offset(most_entries).limit(1)
        key = connection.execute(last).scalar()
        if key is not None:
            deleted += connection.execute(audit.delete().where(group, audit.c.key <= key)).rowcount
    return deleted


def _entry(row: sa.RowMapping) -> Entry:
    return Entry(
        row["key"],
        row["time_ns"],
        Actor(row["actor"], row["token"], row["address"]),
        Done(
            Action(row["action"]),
            row["subject"],
            row["name"],
            row["project"],
            [msgspec.convert(one, FieldChange) for one in row["changes"]],
        ),
    )
