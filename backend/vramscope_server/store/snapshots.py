"""Snapshot files in the database: what was uploaded, its progress, and its devices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.analysis.snapshot_format.device_facts import DeviceFacts
from vramscope_server.store.artifacts import StoredArtifact
from vramscope_server.store.processes import Lock, living, lock_all
from vramscope_server.store.project_scope import visible
from vramscope_server.store.tables import snapshots

State = Literal["waiting", "converting", "ready", "failed"]
KIND: Final = "snapshot"
"""Kind of a device of a snapshot, as artifacts have kinds."""


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """A row. ``devices`` are those of ``snapshot_conversion.device_row``; empty until it is ready."""

    id: str
    sha256: str
    project: str | None
    """None: of no project, visible to tokens that are bound to none."""
    name: str
    bytes: int
    stored_bytes: int
    state: State
    problem: str | None
    received_ns: int
    devices: list[DeviceFacts]
    notes: list[str]
    owner: int | None = None
    """Number of the server process that converts it."""


def list_snapshots(connection: Connection) -> list[StoredSnapshot]:
    """All visible snapshots, newest first."""
    query = sa.select(snapshots).where(visible(connection, snapshots.c.project))
    query = query.order_by(snapshots.c.received_ns.desc(), snapshots.c.id)
    return [StoredSnapshot(**row) for row in connection.execute(query).mappings()]


def find_snapshot(connection: Connection, ident: str) -> StoredSnapshot | None:
    """Visible snapshot with this identifier."""
    return _one(connection, snapshots.c.id == ident)


def snapshot_of_file(connection: Connection, sha256: str, project: str | None) -> StoredSnapshot | None:
    """Snapshot of a file with this hash in a project."""
    return _one(connection, sa.and_(snapshots.c.sha256 == sha256, snapshots.c.project.is_not_distinct_from(project)))


def find_device(connection: Connection, ident: str) -> StoredArtifact | None:
    """Device of a snapshot by its recording id ``<snapshot>-<device>``, as an artifact without a run."""
    snapshot, _, device = ident.rpartition("-")
    found = find_snapshot(connection, snapshot) if snapshot and device.isdigit() else None
    if found is None or (found.state == "ready" and int(device) not in {one["device"] for one in found.devices}):
        return None
    return StoredArtifact(
        id=f"{found.id}-{int(device)}", run_id="", rank=0, kind=KIND, about={"snapshot": found.id, "name": found.name},
        pieces=1, received=int(found.state == "ready"), bytes=found.stored_bytes, received_ns=found.received_ns,
    )  # fmt: skip


def insert_snapshot(connection: Connection, snapshot: StoredSnapshot) -> None:
    """Insert a row."""
    values = {one.name: getattr(snapshot, one.name) for one in fields(StoredSnapshot)}
    connection.execute(snapshots.insert(), [values])


def insert_unless_known(connection: Connection, made: StoredSnapshot) -> tuple[StoredSnapshot | None, list[str]]:
    """Insert a row, unless the project has one of the same file: then that one is returned.

    Failed ones are deleted, and their identifiers returned.
    """
    lock_all(connection, Lock.snapshot, [made.sha256])
    of_file = (snapshots.c.sha256 == made.sha256, snapshots.c.project.is_not_distinct_from(made.project))
    failed = list(
        connection.execute(sa.select(snapshots.c.id).where(*of_file, snapshots.c.state == "failed")).scalars()
    )
    if failed:
        connection.execute(snapshots.delete().where(snapshots.c.id.in_(failed)))
    row = connection.execute(sa.select(snapshots).where(*of_file)).mappings().first()
    if row is not None:
        return StoredSnapshot(**row), failed
    insert_snapshot(connection, made)
    return None, failed


def claim_snapshot(connection: Connection, owner: int) -> StoredSnapshot | None:
    """The oldest snapshot that waits, or whose process died, for this process to convert. None: there is none."""
    taken = sa.and_(snapshots.c.owner.is_not(None), snapshots.c.owner.in_(living(connection)))
    open_ = sa.or_(snapshots.c.state == "waiting", sa.and_(snapshots.c.state == "converting", ~taken))
    oldest = sa.select(snapshots).where(open_).order_by(snapshots.c.received_ns, snapshots.c.id).limit(1)
    row = connection.execute(oldest.with_for_update(skip_locked=True)).mappings().first()
    if row is None:
        return None
    update_snapshot(connection, row["id"], state="converting", owner=owner)
    return StoredSnapshot(**{**row, "state": "converting", "owner": owner})


def settle_snapshot(connection: Connection, ident: str, owner: int, **values: Any) -> bool:
    """Change a row that this process converts. Returns False if it was deleted, or another process has taken over."""
    claimed = (snapshots.c.id == ident, snapshots.c.owner == owner, snapshots.c.state == "converting")
    return connection.execute(snapshots.update().where(*claimed).values(owner=None, **values)).rowcount == 1


def release_snapshots(connection: Connection, owner: int) -> None:
    """Let those wait again that a process of this number converted when it ended."""
    ended = sa.or_(snapshots.c.owner.is_(None), snapshots.c.owner == owner)
    connection.execute(
        snapshots.update().where(snapshots.c.state == "converting", ended).values(state="waiting", owner=None)
    )


def list_unfinished(connection: Connection) -> list[str]:
    """Identifiers of the snapshots of all projects that wait or are converted."""
    query = sa.select(snapshots.c.id).where(snapshots.c.state.in_(("waiting", "converting")))
    return list(connection.execute(query).scalars())


def list_unfailed(connection: Connection) -> list[str]:
    """Identifiers of the snapshots of all projects that were converted, or are."""
    return list(connection.execute(sa.select(snapshots.c.id).where(snapshots.c.state != "failed")).scalars())


def place_of(connection: Connection, ident: str) -> int:
    """Number of snapshots that are converted or wait, and came before this one."""
    me = sa.select(snapshots.c.received_ns).where(snapshots.c.id == ident).scalar_subquery()
    earlier = sa.or_(snapshots.c.received_ns < me, sa.and_(snapshots.c.received_ns == me, snapshots.c.id < ident))
    query = sa.select(sa.func.count()).where(earlier, snapshots.c.state.in_(("waiting", "converting")))
    return int(connection.execute(query).scalar() or 0)


def update_snapshot(connection: Connection, ident: str, **values: Any) -> None:
    """Change a row; nothing if it was deleted."""
    connection.execute(snapshots.update().where(snapshots.c.id == ident).values(**values))


def delete_snapshot(connection: Connection, ident: str) -> None:
    """Delete a row."""
    connection.execute(snapshots.delete().where(snapshots.c.id == ident))


def _one(connection: Connection, which: sa.ColumnElement[bool]) -> StoredSnapshot | None:
    query = sa.select(snapshots).where(which, visible(connection, snapshots.c.project))
    row = connection.execute(query).mappings().first()
    return None if row is None else StoredSnapshot(**row)
