"""Runs in the memory of the writer, by their identifiers and those of their sessions; others are read from the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.batch_errors import BadBatch
from vramscope_server.store.tables import runs, sessions
from vramscope_server.store.writer_records import RunRecord

KEEP_RUNS: Final = 256


class RunCache:
    """All runs that are live or changed, and others up to KEEP_RUNS. One thread only."""

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}
        self._run_of_session: dict[str, str] = {}
        self._next_key = 1

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._runs.values())

    def forget(self) -> None:
        """Drop all runs."""
        self._runs.clear()
        self._run_of_session.clear()

    def load(self, connection: Connection) -> None:
        """Read the state that is needed before a run can begin."""
        self._next_key = int(connection.execute(sa.select(sa.func.max(runs.c.key))).scalar() or 0) + 1

    def find(self, connection: Connection, run_id: str) -> RunRecord | None:
        """Run with this identifier; None if there is none."""
        if run_id in self._runs:
            return self._runs[run_id]
        run = RunRecord.load(connection, run_id)
        if run is not None:
            self._run_of_session.update(dict.fromkeys(run.sessions, run_id))
            self._remember(run)
        return run

    def of_session(self, connection: Connection, batch: messages.Batch) -> RunRecord | None:
        """Run of the session that sends a batch; None for an unknown session. Raises BadBatch if the batch names another
        run."""
        run_id = self._run_of_session.get(batch.session)
        if run_id is None:
            query = sa.select(runs.c.id).join(sessions, sessions.c.run_key == runs.c.key)
            run_id = connection.execute(query.where(sessions.c.id == batch.session)).scalar()
        if run_id is None:
            return None
        if run_id != batch.run:
            raise BadBatch("run", batch.run, f"{run_id}, as in this session's other batches")
        return self.find(connection, run_id)

    def begin(self, batch: messages.Batch, attached: messages.Attached, now_ns: int) -> RunRecord:
        """Add a run from its first batch."""
        run = RunRecord.begin(self._next_key, batch, attached, now_ns)
        self._next_key += 1
        self._remember(run)
        return run

    def add_session(self, run: RunRecord, session_id: str) -> None:
        """Add a session of a run."""
        self._run_of_session[session_id] = run.row.id

    def drop(self, run: RunRecord) -> None:
        """Drop a run: it is deleted, or not needed now."""
        del self._runs[run.row.id]
        for session in run.sessions:
            self._run_of_session.pop(session, None)

    def _remember(self, run: RunRecord) -> None:
        self._runs[run.row.id] = run
        if len(self._runs) > KEEP_RUNS:
            for other in list(self._runs.values()):
                if len(self._runs) <= KEEP_RUNS // 2:
                    break
                if other is not run and not other.dirty and other.row.state != "running":
                    self.drop(other)
