"""Runs that the writer has at hand, by their id and by their sessions'; what is not among them is read from the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.records import RunRecord
from vramscope_server.store.tables import runs, sessions
from vramscope_server.store.validation import BadBatch

KEEP_RUNS: Final = 256


class KnownRuns:
    """All that run or have changed, and others up to KEEP_RUNS. One thread only."""

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}
        self._run_of_session: dict[str, str] = {}
        self._next_key = 1

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._runs.values())

    def forget(self) -> None:
        """Drop them all."""
        self._runs.clear()
        self._run_of_session.clear()

    def load(self, connection: Connection) -> None:
        """Read what must be known before a run can begin."""
        self._next_key = int(connection.execute(sa.select(sa.func.max(runs.c.key))).scalar() or 0) + 1

    def find(self, connection: Connection, run_id: str) -> RunRecord | None:
        """None where there is no run of this id."""
        if run_id in self._runs:
            return self._runs[run_id]
        run = RunRecord.load(connection, run_id)
        if run is not None:
            self._run_of_session.update(dict.fromkeys(run.sessions, run_id))
            self._remember(run)
        return run

    def of_session(self, connection: Connection, batch: messages.Batch) -> RunRecord | None:
        """The run of the session that sends a batch; None where nobody knows that one. Raises BadBatch where the batch names
        another run."""
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
        """A run of which the first batch has come."""
        run = RunRecord.begin(self._next_key, batch, attached, now_ns)
        self._next_key += 1
        self._remember(run)
        return run

    def add_session(self, run: RunRecord, session_id: str) -> None:
        """A session of it has begun."""
        self._run_of_session[session_id] = run.values["id"]

    def drop(self, run: RunRecord) -> None:
        """It is deleted, or of no use for now."""
        del self._runs[run.values["id"]]
        for session in run.sessions:
            self._run_of_session.pop(session, None)

    def _remember(self, run: RunRecord) -> None:
        self._runs[run.values["id"]] = run
        if len(self._runs) > KEEP_RUNS:
            for other in list(self._runs.values()):
                if len(self._runs) <= KEEP_RUNS // 2:
                    break
                if other is not run and not other.dirty and other.values["state"] != "running":
                    self.drop(other)
