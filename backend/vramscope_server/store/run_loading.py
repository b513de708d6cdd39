"""Reads a run for the writer: all of it, or what other server processes changed since it was read."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.artifacts import load_artifacts
from vramscope_server.store.leaks import read_scan
from vramscope_server.store.rank_summary import decode_summary
from vramscope_server.store.run_states import Skew
from vramscope_server.store.silence import Silence
from vramscope_server.store.stored_rows import StoredRun, StoredSession
from vramscope_server.store.tables import ranks, runs, scans, sessions
from vramscope_server.store.writer_records import RankRecord, RunRecord, SessionRecord

_EVERYTHING = -1


def live_runs(connection: Connection) -> list[str]:
    """Identifiers of the running runs."""
    return list(connection.execute(sa.select(runs.c.id).where(runs.c.state == "running")).scalars())


def silent_runs(connection: Connection, now_ns: int, silence: Silence) -> list[str]:
    """Identifiers of the running runs with a running session that is silent, as of ``RunRecord.lose_silent``."""
    query = sa.select(runs.c.id).join(sessions, sessions.c.run_key == runs.c.key).distinct()
    query = query.where(runs.c.state == "running", sessions.c.state == "running")
    is_heard = sessions.c.last_seen_ns.between(now_ns - silence.lost_after_ns, now_ns + silence.future_ns)
    return list(connection.execute(query.where(~is_heard)).scalars())


def baselines(connection: Connection, run_id: str, project: str | None) -> list[str]:
    """Identifiers of the baselines of a project; of None, of the run's."""
    if project is None:
        project = connection.execute(sa.select(runs.c.project).where(runs.c.id == run_id)).scalar()
    return list(connection.execute(sa.select(runs.c.id).where(runs.c.project == project, runs.c.baseline)).scalars())


def load_run(connection: Connection, run_id: str) -> RunRecord | None:
    """A run from the database; None if there is none with this identifier."""
    found = connection.execute(sa.select(runs).where(runs.c.id == run_id)).mappings().first()
    if found is None:
        return None
    run = RunRecord(StoredRun(**found))
    _load_parts(connection, run, _EVERYTHING)
    return run


def reload_run(connection: Connection, run: RunRecord) -> bool:
    """Read what changed since. Returns False if the run was deleted."""
    found = connection.execute(sa.select(runs).where(runs.c.key == run.row.key)).mappings().first()
    if found is None:
        return False
    since = run.row.version
    run.row = StoredRun(**found)
    _load_parts(connection, run, since)
    return True


def _load_parts(connection: Connection, run: RunRecord, since: int) -> None:
    """Read the sessions that changed, with their ranks and scans. A rank or scan changes only together with its session."""
    key = run.row.key
    changed: list[SessionRecord] = []
    query = sa.select(sessions).where(sessions.c.run_key == key, sessions.c.version > since)
    for row in connection.execute(query).mappings():
        session = run.sessions.get(row["id"])
        if session is None:
            session = run.sessions[row["id"]] = SessionRecord(StoredSession(**row), Skew(row["skew_ns"]))
        else:
            session.row, session.skew.skew_ns = StoredSession(**row), row["skew_ns"]
        session.clean()
        changed.append(session)
    _load_ranks(connection, run, None if since == _EVERYTHING else {session.row.rank for session in changed})
    _load_scans(connection, run, None if since == _EVERYTHING else {session.row.id for session in changed})
    run.artifacts = load_artifacts(connection, key)
    run.ran_out_ns = max([run.ran_out_ns, *_out_of_memory_times(run)])
    run.clean()


def _load_ranks(connection: Connection, run: RunRecord, numbers: set[int] | None) -> None:
    query = sa.select(ranks).where(ranks.c.run_key == run.row.key)
    for row in connection.execute(query if numbers is None else query.where(ranks.c.rank.in_(numbers))).mappings():
        run.ranks[row["rank"]] = RankRecord(row["session_id"], decode_summary(row["summary"]))


def _load_scans(connection: Connection, run: RunRecord, ids: set[str] | None) -> None:
    newest = {rank.session_id for rank in run.ranks.values()}
    for session in run.sessions.values():
        if session.scan is not None and session.row.id not in newest:  # the memory of that process is gone
            session.scan, run.scans_changed = None, True
    query = sa.select(scans.c.session_id, scans.c.sequence).where(scans.c.run_key == run.row.key)
    stored = connection.execute(query if ids is None else query.where(scans.c.session_id.in_(ids)))
    missing = [ident for ident, sequence in stored if run.sessions[ident].scan_sequence != sequence]
    if not missing:
        return
    for row in connection.execute(sa.select(scans).where(scans.c.session_id.in_(missing))).mappings():
        session = run.sessions[row["session_id"]]
        session.scan_sequence = row["sequence"]
        if row["session_id"] in newest:
            session.scan, run.scans_changed = read_scan(row["data"]), run.peak_of_leaks is not None


def _out_of_memory_times(run: RunRecord) -> list[int]:
    """Times of the stored out-of-memory records, by the server's clock."""
    times = []
    for artifact in run.artifacts.values():
        at_ns = artifact.facts.get("time_ns") if artifact.kind == "oom" else None
        session = run.sessions.get(artifact.session_id)
        if isinstance(at_ns, int) and session is not None:
            times.append(at_ns - (session.skew.skew_ns or 0))
    return times
