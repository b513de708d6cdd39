"""New rows that are written with the open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.audit_log import Actor, Done, entry_values
from vramscope_server.store.small_chunks import Stream
from vramscope_server.store.statements import put_artifacts, put_rows, put_runs
from vramscope_server.store.tables import audit, chunks, events
from vramscope_server.store.writer_records import RunRecord, SessionRecord


class PendingWrites:
    """New sessions, chunks, events and pieces of artifacts. One thread only."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Drop them: they are written, or never will be."""
        self.sessions: list[SessionRecord] = []
        self.chunks: list[dict[str, Any]] = []
        self._merged: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []
        self._audit: list[dict[str, object]] = []
        self._pieces: list[dict[str, Any]] = []
        self.superfluous: list[str] = []
        """Identifiers of artifacts to delete."""

    def event(
        self, run: RunRecord, rank: int, time_ns: int, kind: str, step: int | None, data: dict[str, messages.Scalar]
    ) -> None:
        where = {"run_key": run.row.key, "rank": rank}
        self._events.append({**where, "time_ns": time_ns, "kind": kind, "step": step, "data": data})

    def audit(self, actor: Actor, done: Done) -> None:
        self._audit.append(entry_values(actor, done))

    def chunk(self, stream: Stream, values: dict[str, Any], is_last: bool = False) -> None:
        """Add a chunk of a stream. ``is_last``: it is not merged again, because the run has ended."""
        key, rank, device, name = stream
        values |= {"run_key": key, "rank": rank, "device": device, "stream": name}
        (self._merged if is_last else self.chunks).append(values)

    def piece(self, piece: messages.Piece) -> None:
        self._pieces.append({"artifact": piece.artifact, "number": piece.number, "data": piece.data})

    def write(self, connection: Connection, dirty: Sequence[RunRecord]) -> None:
        """Write them in the open transaction, after the changes of these runs."""
        put_runs(connection, dirty, self.sessions)
        put_rows(connection, chunks.insert(), [*self.chunks, *self._merged])
        put_rows(connection, events.insert(), self._events)
        put_rows(connection, audit.insert(), self._audit)
        if self._pieces:
            put_artifacts(connection, dirty, self._pieces, self.superfluous)
