"""Finds and lists runs. ``run_detail.py`` has one in full, ``series_reader.py`` the numbers of its steps and samples."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.answers.runs import ListedRun, RunRow
from vramscope_server.store.jobs import jobs_of_runs, runs_of_job
from vramscope_server.store.leaks import read_scan
from vramscope_server.store.list_row import run_row
from vramscope_server.store.project_scope import visible
from vramscope_server.store.rank_summary import RankSummary, decode_summary
from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.store.tables import ranks, runs, scans, sessions

MAX_TAGS: Final = 500
MAX_SUGGESTIONS: Final = 5
_ROW_COLUMNS: Final = [c for c in runs.columns if c.name not in ("config", "command", "overhead", "peak_categories")]


_ROW_NAMES: Final = [column.name for column in _ROW_COLUMNS]


class UnknownRun(LookupError):
    """No run matches this text. ``suggestions`` are similar names and identifiers."""

    def __init__(self, text: str, why: str, suggestions: list[str]) -> None:
        super().__init__(why)
        self.text = text
        self.suggestions = suggestions


def find_run(connection: Connection, text: str, *, suggest: bool = True) -> StoredRun:
    """Visible run with this identifier, name (the newest with it) or unique prefix of an identifier. Raises UnknownRun.

    suggest   look for similar names if there is none: 8 ms with 500 runs
    """
    if len(text) > messages.MAX_NAME:
        raise UnknownRun(
            text, f"Run {text[:40]!r} ... not found: a name has at most {messages.MAX_NAME} characters.", []
        )
    seen = visible(connection, runs.c.project)
    for condition in (runs.c.id == text, runs.c.name == text):
        query = sa.select(runs).where(condition, seen).order_by(runs.c.started_ns.desc()).limit(1)
        if (found := connection.execute(query).mappings().first()) is not None:
            return StoredRun(**found)
    pattern = _like(text) + "%"
    prefixed = sa.select(runs).where(runs.c.id.like(pattern, escape="\\"), seen)
    starting = connection.execute(prefixed.limit(6)).mappings().all()
    if len(starting) == 1 and text:
        return StoredRun(**starting[0])
    if starting and text:
        raise UnknownRun(text, f"Several runs begin with {text!r}.", [row["id"] for row in starting])
    if not suggest:
        raise UnknownRun(text, f"Run {text!r} not found.", [])
    newest = sa.select(runs.c.name, runs.c.id).where(seen).order_by(runs.c.started_ns.desc()).limit(500)
    rows = connection.execute(newest).all()
    names = list(dict.fromkeys(row.name for row in rows))
    near = [name for name in names if text and text.lower() in name.lower()]
    near += difflib.get_close_matches(text, [*names, *(row.id for row in rows)], n=MAX_SUGGESTIONS, cutoff=0.5)
    raise UnknownRun(text, f"Run {text!r} not found.", list(dict.fromkeys(near))[:MAX_SUGGESTIONS])


def list_runs(
    connection: Connection,
    *,
    query: str = "",
    project: str = "",
    state: str = "",
    tag: str = "",
    device: str = "",
    job: str = "",
    limit: int = 100,
    cursor: tuple[int, int, int] | None = None,
) -> tuple[list[ListedRun], int, tuple[int, int, int] | None, list[str]]:
    """Rows of the list, their total, the start of the next page, and all visible projects.

    Pinned and baseline runs come first, then the newest. 1000 rows take about 40 ms.
    """
    seen = visible(connection, runs.c.project)
    conditions: list[sa.ColumnElement[bool]] = [seen]
    for word in query.split():
        pattern = f"%{_like(word)}%"
        columns = (runs.c.name, runs.c.project, runs.c.device, runs.c.id, sa.cast(runs.c.tags, sa.Text), runs.c.state)
        conditions.append(sa.or_(*(column.ilike(pattern, escape="\\") for column in columns)))
    if project:
        conditions.append(runs.c.project == project)
    if state:
        conditions.append(runs.c.state == state)
    if tag:  # as the column's JSON encodes it
        conditions.append(sa.cast(runs.c.tags, sa.Text).like(f"%{_like(json.dumps(tag))}%", escape="\\"))
    if device:
        conditions.append(runs.c.device == device)
    if job:
        conditions.append(runs.c.key.in_(runs_of_job(job)))
    first = sa.case((sa.or_(runs.c.pinned, runs.c.baseline), 1), else_=0)
    total = int(connection.execute(sa.select(sa.func.count()).select_from(runs).where(*conditions)).scalar() or 0)
    place = (first, runs.c.started_ns, runs.c.key)
    page = sa.select(*_ROW_COLUMNS, first.label("first")).where(*conditions)
    if cursor is not None:
        page = page.where(sa.tuple_(*place) < sa.tuple_(*(sa.literal(part, sa.BigInteger()) for part in cursor)))
    page = page.order_by(*(part.desc() for part in place)).limit(limit + 1)
    found = connection.execute(page).mappings().all()
    following = None
    if len(found) > limit:
        found = found[:limit]
        last = found[-1]
        following = (int(last["first"]), int(last["started_ns"]), int(last["key"]))
    named = sa.select(runs.c.project).where(seen).distinct().order_by(runs.c.project)
    projects = list(connection.execute(named).scalars())
    jobs = jobs_of_runs(connection, [row["key"] for row in found])
    rows: list[ListedRun] = [
        {**run_row(StoredRun(**{name: row[name] for name in _ROW_NAMES})), "jobs": jobs.get(row["key"], [])}
        for row in found
    ]
    return rows, total, following, projects


def list_choices(connection: Connection) -> tuple[list[str], list[str]]:
    """Devices and tags of all visible runs, each in alphabetical order."""
    seen = visible(connection, runs.c.project)
    devices = connection.execute(sa.select(runs.c.device).distinct().where(runs.c.device.is_not(None), seen)).scalars()
    tagged = sa.select(sa.cast(runs.c.tags, sa.Text)).distinct().where(seen)
    tags = {tag for text in connection.execute(tagged).scalars() for tag in json.loads(text)}
    return sorted(devices), sorted(tags)[:MAX_TAGS]


def scalars_of_rank(connection: Connection, run: StoredRun, rank: int) -> list[str]:
    """Names of the numbers that a rank reports."""
    query = sa.select(ranks.c.summary).where(ranks.c.run_key == run.key, ranks.c.rank == rank)
    found = connection.execute(query).scalar()
    return [] if found is None else sorted(decode_summary(found).scalars)


@dataclass(frozen=True, slots=True)
class RankScan:
    """The newest scan of a rank's newest session, and the skew of its clock."""

    scan: messages.Scan
    skew_ns: int | None


def summary_of_rank(connection: Connection, run: StoredRun, rank: int) -> RankSummary | None:
    """Summary of a rank; None if there is no such rank."""
    query = sa.select(ranks.c.summary).where(ranks.c.run_key == run.key, ranks.c.rank == rank)
    summary = connection.execute(query).scalar_one_or_none()
    return None if summary is None else decode_summary(summary)


def load_scans(connection: Connection, run: StoredRun) -> dict[int, RankScan]:
    """Scans by rank; ranks without a scan are left out (``leaks.py``)."""
    joined = (
        sa.select(ranks.c.rank, scans.c.data, sessions.c.skew_ns)
        .join(scans, scans.c.session_id == ranks.c.session_id)
        .join(sessions, sessions.c.id == ranks.c.session_id)
        .where(ranks.c.run_key == run.key)
    )
    read = {row.rank: (read_scan(row.data), row.skew_ns) for row in connection.execute(joined)}
    return {rank: RankScan(scan, skew_ns) for rank, (scan, skew_ns) in read.items() if scan is not None}


def running_runs(connection: Connection) -> list[str]:
    """Identifiers of the visible running runs, the newest first."""
    seen = visible(connection, runs.c.project)
    query = sa.select(runs.c.id).where(runs.c.state == "running", seen).order_by(runs.c.started_ns.desc())
    return list(connection.execute(query).scalars())


def counts_by_state(connection: Connection) -> dict[str, int]:
    """Number of visible runs by state."""
    seen = visible(connection, runs.c.project)
    counted = connection.execute(sa.select(runs.c.state, sa.func.count()).where(seen).group_by(runs.c.state))
    return {state: int(count) for state, count in counted}


def _like(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def rows_seen_since(connection: Connection, since_ns: int, more: Sequence[str] = ()) -> list[RunRow]:
    """Rows of runs of all projects that sent something since then, and of the runs with these identifiers."""
    query = sa.select(*_ROW_COLUMNS).where(sa.or_(runs.c.last_seen_ns > since_ns, runs.c.id.in_(more)))
    found = connection.execute(query).mappings()
    return [run_row(StoredRun(**{name: row[name] for name in _ROW_NAMES})) for row in found]
