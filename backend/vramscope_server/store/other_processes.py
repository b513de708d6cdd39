"""Other processes on the devices of a run, from the events in which the agents report them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol.other_process import EVENT, Reported
from vramscope.protocol.series import OTHER_PROCESSES
from vramscope_server.answers.other_processes import OtherProcessOfRun
from vramscope_server.answers.run_detail import RankRow
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.store.tables import events

MOST_READ: Final = 2000
MOST_SHOWN: Final = 64


def other_processes(
    connection: Connection, run: StoredRun, rows: Sequence[RankRow], skews: Mapping[int, int]
) -> list[OtherProcessOfRun] | None:
    """Return the processes, those that are on a device first, the largest first. None: nothing is known of them."""
    every = _merged(connection, run, skews)
    if not every:
        return [] if rows and all(row["peak_other_processes_bytes"] == 0 for row in rows) else None
    hosts = {row["rank"]: row["host"] for row in rows}
    ranks = {(row["host"], row["pid"]): row["rank"] for row in rows}
    for row in every:
        host = hosts.get(row["rank"])
        # In a container the number is the host's: it names a rank only where the agent could read who it is.
        row["rank_of_run"] = ranks.get((host, row["pid"])) if host and row["user"] is not None else None
    return every[:MOST_SHOWN]


def names_of_series(connection: Connection, run: StoredRun, rank: int, device: int) -> dict[str, str]:
    """Return the process of each series of a device; of several that had it, the largest."""
    named: dict[str, str] = {}
    for row in _merged(connection, run, {}, rank):
        if row["device"] == device and row["series"] is not None:
            command = row["command"] or ""
            named.setdefault(row["series"], f"{command} (pid {row['pid']})" if command else f"pid {row['pid']}")
    return named


def _merged(
    connection: Connection, run: StoredRun, skews: Mapping[int, int], rank: int | None = None
) -> list[OtherProcessOfRun]:
    """One row for each process, from its reports: those on a device first, the largest first. ``rank``: only from its reports."""
    newest = sa.select(events).where(events.c.run_key == run.key, events.c.kind == EVENT)
    if rank is not None:
        newest = newest.where(events.c.rank == rank)
    found: dict[tuple[int, int, int], OtherProcessOfRun] = {}
    gone: list[OtherProcessOfRun] = []
    reports = connection.execute(newest.order_by(events.c.key.desc()).limit(MOST_READ)).mappings().all()
    for report in reversed(reports):
        skew_ns = display_skew_ns(skews.get(report["rank"]))
        row = _row(report["data"], report["rank"], (report["time_ns"] - skew_ns) / 1e9)
        if row is None:
            continue
        key = (row["rank"], row["device"], row["pid"])
        if (before := found.pop(key, None)) is not None:
            row["first_seconds"] = before["first_seconds"]
            row["peak_bytes"] = max((peak for one in (before, row) if (peak := one["peak_bytes"])), default=None)
            row["series"] = row["series"] or before["series"]
        if row["on_device"]:
            found[key] = row
        else:
            gone.append(row)
    return sorted([*found.values(), *gone], key=lambda row: (not row["on_device"], -(row["peak_bytes"] or 0)))


def _row(data: Mapping[str, Any], rank: int, seconds: float) -> OtherProcessOfRun | None:
    """One report; None if it is not one that this version understands."""
    try:
        process = msgspec.convert(data, Reported)
    except msgspec.ValidationError:
        return None
    return {
        "pid": process.pid,
        "command": process.command,
        "user": process.user,
        "container": process.container,
        "manager": process.manager,
        "job": process.job,
        "job_name": process.job_name,
        "pod": process.pod,
        "rank": rank,
        "device": process.device,
        "rank_of_run": None,
        "series": process.series if process.series in OTHER_PROCESSES else None,
        "used_bytes": process.used_bytes,
        "peak_bytes": process.peak_bytes,
        "on_device": not process.ended,
        "first_seconds": seconds,
        "last_seconds": seconds,
    }
