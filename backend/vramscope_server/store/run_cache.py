"""Runs in the memory of the writer, by their identifiers and those of their sessions; others are read from the database.

Other server processes may change a run on PostgreSQL. So each transaction locks the runs that it changes, and reads what
changed since they were last read: nothing, as long as all of a run arrives at one process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.batch_errors import BadBatch
from vramscope_server.store.processes import Lock, is_shared, lock_all
from vramscope_server.store.run_loading import load_run, reload_run
from vramscope_server.store.tables import runs, sessions
from vramscope_server.store.writer_records import RunRecord

KEEP_RUNS: Final = 256


class RunCache:
    """All runs that are live or changed, and others up to KEEP_RUNS. One thread only."""

    def __init__(self) -> None:
        self._runs: dict[str, RunRecord] = {}
        self._run_of_session: dict[str, str] = {}
        self._next_key = 1
        self._shared = False
        self._locked: set[str] = set()
        """Runs that the open transaction has locked, and that are as in the database."""

    def __iter__(self) -> Iterator[RunRecord]:
        return iter(self._runs.values())

    def forget(self) -> None:
        """Drop all runs."""
        self._runs.clear()
        self._run_of_session.clear()

    def load(self, connection: Connection) -> None:
        """Read the state that is needed before a run can begin."""
        self._shared = is_shared(connection)
        if not self._shared:
            self._next_key = int(connection.execute(sa.select(sa.func.max(runs.c.key))).scalar() or 0) + 1

    def begin_transaction(self) -> None:
        """No run is locked."""
        self._locked.clear()

    def lock(self, connection: Connection, run_ids: Iterable[str]) -> None:
        """Lock these runs until the transaction ends, all at once, and read what other processes changed."""
        wanted = set(run_ids) - self._locked
        if not self._shared or not wanted:
            return
        lock_all(connection, Lock.run, wanted)
        self._locked |= wanted
        known = {run_id: self._runs[run_id] for run_id in wanted if run_id in self._runs}
        if known:
            query = sa.select(runs.c.id, runs.c.version).where(runs.c.id.in_(known))
            stored = {row.id: row.version for row in connection.execute(query)}
            for run_id, run in known.items():
                self._read_changes(connection, run, stored.get(run_id))

    def _read_changes(self, connection: Connection, run: RunRecord, version: int | None) -> None:
        if version == run.row.version:
            return
        if version is None or not reload_run(connection, run):
            self.drop(run)
        else:
            self._run_of_session.update(dict.fromkeys(run.sessions, run.row.id))

    def find(self, connection: Connection, run_id: str) -> RunRecord | None:
        """Run with this identifier; None if there is none."""
        self.lock(connection, [run_id])
        if run_id in self._runs:
            return self._runs[run_id]
        run = load_run(connection, run_id)
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

    def begin(
        self, connection: Connection, batch: messages.Batch, attached: messages.Attached, now_ns: int
    ) -> RunRecord:
        """Add a run from its first batch."""
        if self._shared:
            key = int(connection.exec_driver_sql("SELECT nextval('runs_keys')").scalar() or 0)
        else:
            key, self._next_key = self._next_key, self._next_key + 1
        run = RunRecord.begin(key, batch, attached, now_ns)
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

    def drop_ended(self, live: set[str]) -> None:
        """Drop runs that another process has ended: here they would count as live, and stay."""
        for run in list(self._runs.values()):
            if run.row.state == "running" and run.row.id not in live and not run.dirty:
                self.drop(run)

    def _remember(self, run: RunRecord) -> None:
        self._runs[run.row.id] = run
        if len(self._runs) > KEEP_RUNS:
            for other in list(self._runs.values()):
                if len(self._runs) <= KEEP_RUNS // 2:
                    break
                if other is not run and not other.dirty and other.row.state != "running":
                    self.drop(other)
