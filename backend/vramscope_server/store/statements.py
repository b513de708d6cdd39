"""Writes the changes of runs, sessions, ranks and scans: one statement for many rows, in the open transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.sql.base import Executable

from vramscope_server.store.artifacts import delete_artifacts
from vramscope_server.store.leaks import encode_scan
from vramscope_server.store.rank_summary import encode_summary
from vramscope_server.store.tables import artifact_pieces, artifacts, ranks, run_jobs, runs, scans, sessions
from vramscope_server.store.writer_records import (
    RUN_OFTEN_CHANGED,
    RUN_RARELY_CHANGED,
    SESSION_OFTEN_CHANGED,
    SESSION_RARELY_CHANGED,
    RunRecord,
    SessionRecord,
)


def put_rows(connection: Connection, statement: Executable, rows: Sequence[dict[str, Any]]) -> None:
    """Execute a statement with all rows; not at all without rows."""
    if rows:
        connection.execute(statement, rows)


def put_runs(connection: Connection, dirty: Sequence[RunRecord], new_sessions: Sequence[SessionRecord]) -> None:
    """Write these runs, and of their sessions, ranks and scans those that changed."""
    put_rows(connection, runs.insert(), [run.row.to_row() for run in dirty if run.new])
    _RUNS.put(connection, [run for run in dirty if not run.new])
    put_rows(connection, sessions.insert(), [session.row.to_row() for session in new_sessions])
    fresh = {id(session) for session in new_sessions}
    changed = [s for run in dirty for s in run.sessions.values() if s.dirty and id(s) not in fresh]
    _SESSIONS.put(connection, changed)
    _put_jobs(connection, dirty)
    _put_ranks(connection, dirty)
    _put_scans(connection, dirty)


class _Update:
    """Updates the records of one table: all columns, or the few that changed."""

    def __init__(self, table: sa.Table, key: str, moves: Sequence[str], tells: Sequence[str]) -> None:
        self._key = key
        self._statement = table.update().where(table.c[key] == sa.bindparam("b_key"))
        self._names = {True: moves, False: (*moves, *tells)}

    def put(self, connection: Connection, records: Sequence[RunRecord] | Sequence[SessionRecord]) -> None:
        for only_moved, names in self._names.items():
            rows = [record.row for record in records if record.only_moved is only_moved]
            # SQLAlchemy sets every column that has a value here.
            values = [{"b_key": getattr(row, self._key), **{n: getattr(row, n) for n in names}} for row in rows]
            put_rows(connection, self._statement, values)


_RUNS: Final = _Update(runs, "key", RUN_OFTEN_CHANGED, RUN_RARELY_CHANGED)
_SESSIONS: Final = _Update(sessions, "id", SESSION_OFTEN_CHANGED, SESSION_RARELY_CHANGED)


def _put_jobs(connection: Connection, dirty: Sequence[RunRecord]) -> None:
    """Deleted and inserted again: another process may have inserted the same."""
    gone = [(run, name) for run in dirty for name in sorted(run.added_jobs | run.dropped_jobs)]
    put_rows(connection, _DELETE_JOB, [{"b_run": run.row.key, "b_name": name} for run, name in gone])
    rows = [{"run_key": run.row.key, "name": name} for run in dirty for name in sorted(run.added_jobs)]
    put_rows(connection, run_jobs.insert(), rows)


def _put_ranks(connection: Connection, dirty: Sequence[RunRecord]) -> None:
    inserted, updated = [], []
    for run in dirty:
        for number, rank in run.ranks.items():
            if rank.dirty:
                values = {"session_id": rank.session_id, "summary": encode_summary(rank.summary)}
                key = run.row.key
                if rank.new:
                    inserted.append({"run_key": key, "rank": number, **values})
                else:
                    updated.append({"b_run": key, "b_rank": number, **values})
    put_rows(connection, ranks.insert(), inserted)
    put_rows(connection, _UPDATE_RANK, updated)


def _put_scans(connection: Connection, dirty: Sequence[RunRecord]) -> None:
    # Few a run: deleted and inserted again, which every database does alike.
    seen = [session for run in dirty for session in run.sessions.values() if session.scan_dirty]
    put_rows(connection, _DELETE_SCAN, [{"b_id": session.row.id} for session in seen])
    rows = [
        {
            "session_id": session.row.id,
            "run_key": session.row.run_key,
            "sequence": session.scan_sequence,
            "data": encode_scan(session.scan),
        }
        for session in seen
        if session.scan is not None
    ]
    put_rows(connection, scans.insert(), rows)


def put_artifacts(
    connection: Connection, dirty: Sequence[RunRecord], pieces: Sequence[dict[str, Any]], gone: Sequence[str]
) -> None:
    """Write new artifacts, new pieces and counts, and delete what exceeds the limits last: it may be new, too."""
    records = [artifact for run in dirty for artifact in run.artifacts.values()]
    put_rows(connection, artifacts.insert(), [record.to_row() for record in records if record.new])
    changed = [record for record in records if record.dirty and not record.new]
    put_rows(connection, _UPDATE_ARTIFACT, [{**record.to_row(), "b_id": record.id} for record in changed])
    kept = {record.id for record in records}
    put_rows(connection, artifact_pieces.insert(), [piece for piece in pieces if piece["artifact"] in kept])
    if gone:
        delete_artifacts(connection, artifacts.c.id.in_(gone))


_UPDATE_RANK: Final = ranks.update().where(
    ranks.c.run_key == sa.bindparam("b_run"), ranks.c.rank == sa.bindparam("b_rank")
).values(session_id=sa.bindparam("session_id"), summary=sa.bindparam("summary"))  # fmt: skip
_UPDATE_ARTIFACT: Final = artifacts.update().where(artifacts.c.id == sa.bindparam("b_id")).values(
    {name: sa.bindparam(name) for name in ("received", "bytes", "received_ns")}
)  # fmt: skip
_DELETE_JOB: Final = run_jobs.delete().where(
    run_jobs.c.run_key == sa.bindparam("b_run"), run_jobs.c.name == sa.bindparam("b_name")
)  # fmt: skip
_DELETE_SCAN: Final = scans.delete().where(scans.c.session_id == sa.bindparam("b_id"))
