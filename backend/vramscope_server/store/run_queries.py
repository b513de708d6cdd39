"""What is read of runs from the database, on connections of its own; their numbers are in ``places.py``."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import messages
from vramscope_server.store.leaks import merge_leaks, read_look
from vramscope_server.store.rows import is_emulated, run_row, seconds
from vramscope_server.store.run_states import OPEN, display_skew_ns
from vramscope_server.store.scalars import told_loss
from vramscope_server.store.series_reader import Run
from vramscope_server.store.summary import RankSummary, decode_summary
from vramscope_server.store.tables import events, ranks, runs, scans, sessions

MAX_EVENTS: Final = 1000
MAX_TAGS: Final = 500
FRAGMENTATION: Final = (
    "inactive_split_bytes",
    "reserved_minus_allocated_bytes",
    "unusable_bytes",
    "never_needed_bytes",
)
RESETS: Final = ("foreign_reset_steps", "lower_bound_steps")
_ROW_COLUMNS: Final = [c for c in runs.columns if c.name not in ("config", "command", "overhead", "peak_categories")]


class UnknownRun(LookupError):
    """No run is meant by this text. ``suggestions`` are names and ids that come near."""

    def __init__(self, text: str, why: str, suggestions: list[str]) -> None:
        super().__init__(why)
        self.text = text
        self.suggestions = suggestions


def find_run(connection: Connection, text: str) -> Run:
    """The run that an id, a name (the newest of it) or a unique prefix of an id means. Raises UnknownRun."""
    for condition in (runs.c.id == text, runs.c.name == text):
        query = sa.select(runs).where(condition).order_by(runs.c.started_ns.desc()).limit(1)
        if (found := connection.execute(query).mappings().first()) is not None:
            return dict(found)
    pattern = _like(text) + "%"
    starting = connection.execute(sa.select(runs).where(runs.c.id.like(pattern, escape="\\")).limit(6)).mappings().all()
    if len(starting) == 1 and text:
        return dict(starting[0])
    if starting and text:
        raise UnknownRun(text, f"Several runs begin with {text!r}.", [row["id"] for row in starting])
    newest = sa.select(runs.c.name, runs.c.id).order_by(runs.c.started_ns.desc()).limit(500)
    names = list(dict.fromkeys(word for row in connection.execute(newest) for word in row))
    near = difflib.get_close_matches(text, names, n=5, cutoff=0.5) or names[:10:2]
    raise UnknownRun(text, f"There is no run {text!r}.", near)


def list_runs(
    connection: Connection,
    *,
    query: str = "",
    project: str = "",
    state: str = "",
    tag: str = "",
    device: str = "",
    limit: int = 100,
    cursor: tuple[int, int, int] | None = None,
) -> tuple[list[dict[str, Any]], int, tuple[int, int, int] | None, list[str]]:
    """Rows of the runs list, their total, where the next page begins, and all projects.

    Pinned and baseline runs come first, then the newest. 1000 rows take about 40 ms.
    """
    conditions: list[sa.ColumnElement[bool]] = []
    for word in query.split():
        pattern = f"%{_like(word)}%"
        columns = (runs.c.name, runs.c.project, runs.c.device, runs.c.id, sa.cast(runs.c.tags, sa.Text), runs.c.state)
        conditions.append(sa.or_(*(column.ilike(pattern, escape="\\") for column in columns)))
    if project:
        conditions.append(runs.c.project == project)
    if state:
        conditions.append(runs.c.state == state)
    if tag:  # as the column's JSON spells it
        conditions.append(sa.cast(runs.c.tags, sa.Text).like(f"%{_like(json.dumps(tag))}%", escape="\\"))
    if device:
        conditions.append(runs.c.device == device)
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
    projects = list(connection.execute(sa.select(runs.c.project).distinct().order_by(runs.c.project)).scalars())
    return [run_row(dict(row)) for row in found], total, following, projects


def list_choices(connection: Connection) -> dict[str, list[str]]:
    """What the list can be narrowed to: ``devices`` and ``tags`` of all runs, each in alphabetical order."""
    devices = connection.execute(sa.select(runs.c.device).distinct().where(runs.c.device.is_not(None))).scalars()
    as_text = sa.cast(runs.c.tags, sa.Text)
    tags = {tag for text in connection.execute(sa.select(as_text).distinct()).scalars() for tag in json.loads(text)}
    return {"devices": sorted(devices), "tags": sorted(tags)[:MAX_TAGS]}


def run_in_full(connection: Connection, run: Run) -> dict[str, Any]:
    """``show RUN --json`` and what the run's page needs besides (docs/http.md)."""
    told = connection.execute(
        sa.select(events).where(events.c.run_key == run["key"]).order_by(events.c.key.desc()).limit(MAX_EVENTS)
    ).mappings()
    places = _ranks(connection, run)
    skews = {place["rank"]: int((place["clock_skew_seconds"] or 0) * 1e9) for place in places}
    happened = sorted(
        (
            {
                "time_seconds": seconds(row["time_ns"] - display_skew_ns(skews.get(row["rank"]))),
                "rank": row["rank"],
                "kind": row["kind"],
                "step": row["step"],
                "data": row["data"],
            }
            for row in told
        ),
        key=lambda event: float(event["time_seconds"] or 0),
    )
    overhead = run["overhead"]
    shift = display_skew_ns(skews.get(places[0]["rank"])) if places else 0
    ooms = run["out_of_memory"]
    return run_row(run) | {
        "peak_phase": run["peak_phase"],
        "peak_categories": run["peak_categories"],
        "fragmentation": None
        if all(run[name] is None for name in FRAGMENTATION)
        else {name: run[name] for name in FRAGMENTATION} | {"parts": _parts(connection, run)},
        "leaks": None
        if run["leaks"] is None
        else merge_leaks({r: x.scan for r, x in load_looks(connection, run).items()}),
        "leak_count": run["leaks"],
        "out_of_memory": None if ooms is None else [event for event in happened if event["kind"] == "out_of_memory"],
        "out_of_memory_count": ooms,
        "techniques": run["techniques"],
        "findings": run["findings"],
        "allocator_settings": run["allocator_settings"],
        "agent_overhead": overhead
        and {
            name: overhead[name]
            for name in (
                "seconds_per_step",
                "fraction",
                "resolvable",
                "noise_fraction",
                "hook_seconds",
                "sampler_cpu_seconds",
            )
        },
        "dropped_samples": _dropped_samples(connection, run),
        **{name: _most(places, name) for name in RESETS},
        "framework": run["framework"],
        "config": run["config"],
        "command": run["command"],
        "git_commit": run["git_commit"],
        "loss": next((place["loss"] for place in places if place["loss"] is not None), None),
        "trained_seconds": _trained_seconds(connection, run),
        "ranks": places,
        "events": happened,
        "window": {
            "first_seconds": seconds(run["first_time_ns"] and run["first_time_ns"] - shift),
            "last_seconds": seconds(run["last_time_ns"] and run["last_time_ns"] - shift),
            "first_step": run["first_step"],
            "last_step": run["last_step"],
        },
        "wire": messages.WIRE_VERSION,
    }


def _trained_seconds(connection: Connection, run: Run) -> float | None:
    """Wall time from attach to end, over all sessions of the lowest rank, gaps between them left out."""
    lowest = sa.select(sa.func.min(sessions.c.rank)).where(sessions.c.run_key == run["key"]).scalar_subquery()
    query = sa.select(sessions.c.started_ns, sessions.c.ended_ns, sessions.c.last_seen_ns, sessions.c.skew_ns)
    query = query.where(sessions.c.run_key == run["key"], sessions.c.rank == lowest).order_by(sessions.c.started_ns)
    total, until = 0, 0
    for row in connection.execute(query):
        shift = display_skew_ns(row.skew_ns)
        began = max(int(row.started_ns) - shift, until)
        until = max(until, int(row.last_seen_ns) if row.ended_ns is None else int(row.ended_ns) - shift)
        total += max(0, until - began)
    return seconds(total) if until else None


def _dropped_samples(connection: Connection, run: Run) -> int | None:
    """As its sessions told at their end, or last; None where one of them has not told (yet)."""
    query = sa.select(sessions.c.state, sessions.c.dropped_samples, sessions.c.overhead)
    dropped = 0
    for session in connection.execute(query.where(sessions.c.run_key == run["key"])):
        told = (session.overhead or {}).get("dropped_samples") is not None
        if not told and session.state in OPEN:
            return None
        dropped += int(session.dropped_samples)
    return dropped


def _parts(connection: Connection, run: Run) -> dict[str, int] | None:
    """Of the rank whose unusable bytes the run's are: see run_summary.aggregate."""
    found = connection.execute(sa.select(ranks.c.summary).where(ranks.c.run_key == run["key"])).scalars()
    summaries = [summary for summary in map(decode_summary, found) if summary.unusable_reserved_bytes is not None]
    return max(summaries, key=lambda summary: summary.unusable_reserved_bytes or 0).parts if summaries else None


def _most(places: list[dict[str, Any]], name: str) -> int | None:
    """Of the rank that has most."""
    return max((place[name] for place in places if place[name] is not None), default=None)


def _ranks(connection: Connection, run: Run) -> list[dict[str, Any]]:
    joined = (
        sa.select(ranks.c.rank, ranks.c.summary, sessions)
        .join(sessions, sessions.c.id == ranks.c.session_id)
        .where(ranks.c.run_key == run["key"])
        .order_by(ranks.c.rank)
    )
    places = []
    for row in connection.execute(joined).mappings():
        attached = row["attached"] or {}
        summary = decode_summary(row["summary"])
        places.append(
            {
                "rank": row[ranks.c.rank],
                "host": attached.get("host"),
                "pid": attached.get("pid"),
                "state": row["state"],
                "devices": [
                    {name: device.get(name) for name in ("index", "name", "uuid", "total_bytes")}
                    | {"emulated": is_emulated(device)}
                    for device in attached.get("devices", [])
                ],
                **{name: attached.get(name) for name in ("python", "torch", "cuda", "driver")},
                **{name: attached.get(name) for name in ("agent_version", "host_total_bytes")},
                "clock_skew_seconds": seconds(row["skew_ns"]),
                "steps": summary.steps,
                "peak_allocated_bytes": summary.peak_allocated_bytes,
                "peak_reserved_bytes": summary.peak_reserved_bytes,
                **{
                    f"peak_{name}": getattr(summary, name)
                    for name in ("process_device_bytes", "device_used_bytes", "other_processes_bytes")
                },
                **{name: getattr(summary, name) for name in RESETS},
                "loss": told_loss(summary.scalars),
                "scalars": sorted(summary.scalars),
                "last_seen_seconds": seconds(row["last_seen_ns"]),
                "error_type": row["error_type"],
                "error_line": row["error_line"],
            }
        )
    return places


def scalars_of_rank(connection: Connection, run: Run, rank: int) -> list[str]:
    """Names of the numbers that a rank tells of itself."""
    query = sa.select(ranks.c.summary).where(ranks.c.run_key == run["key"], ranks.c.rank == rank)
    found = connection.execute(query).scalar()
    return [] if found is None else sorted(decode_summary(found).scalars)


@dataclass(frozen=True, slots=True)
class Looked:
    """The newest look of a rank's newest session, and by how much its moments are off."""

    scan: messages.Scan
    skew_ns: int | None


def summary_of_rank(connection: Connection, run: Run, rank: int) -> RankSummary | None:
    """What is known of a rank's numbers; None: there is no such rank."""
    query = sa.select(ranks.c.summary).where(ranks.c.run_key == run["key"], ranks.c.rank == rank)
    summary = connection.execute(query).scalar_one_or_none()
    return None if summary is None else decode_summary(summary)


def load_looks(connection: Connection, run: Run) -> dict[int, Looked]:
    """By rank, as far as they have looked: see ``leaks.py``."""
    joined = (
        sa.select(ranks.c.rank, scans.c.data, sessions.c.skew_ns)
        .join(scans, scans.c.session_id == ranks.c.session_id)
        .join(sessions, sessions.c.id == ranks.c.session_id)
        .where(ranks.c.run_key == run["key"])
    )
    read = {row.rank: (read_look(row.data), row.skew_ns) for row in connection.execute(joined)}
    return {rank: Looked(scan, skew_ns) for rank, (scan, skew_ns) in read.items() if scan is not None}


def counts_by_state(connection: Connection) -> dict[str, int]:
    """How many runs are in each state."""
    counted = connection.execute(sa.select(runs.c.state, sa.func.count()).group_by(runs.c.state))
    return {state: int(count) for state, count in counted}


def _like(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
