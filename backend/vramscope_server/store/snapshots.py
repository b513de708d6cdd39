"""Snapshot files in the database: what was uploaded, its progress, and its devices."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.analysis.snapshot_format.device_facts import DeviceFacts
from vramscope_server.store.artifacts import StoredArtifact
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
