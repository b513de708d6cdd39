"""Reads the numbers of one device of one rank from the chunks, in a window of time or of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol import series
from vramscope_server.analysis.array_types import FloatArray, IntArray
from vramscope_server.store import columns as codec
from vramscope_server.store.run_states import display_skew_ns
from vramscope_server.store.scalars import SCALARS
from vramscope_server.store.stored_rows import StoredRun
from vramscope_server.store.tables import chunks, ranks, runs, sessions


@dataclass(frozen=True, slots=True)
class RankDevice:
    """A device of a rank, and the skew by which its times are shifted."""

    rank: int
    device: int
    skew_ns: int
    capacity_bytes: int | None = None
    started_ns: int | None = None
    """Start of the rank's newest session, by its own clock."""


class UnknownRankDevice(LookupError):
    """The run has no such rank or device; the message names those that exist."""


def find_rank_device(connection: Connection, run: StoredRun, rank: int | None, device: int | None) -> RankDevice:
    """The requested rank and device; by default the first ones. Raises UnknownRankDevice."""
    places: dict[int, dict[int, RankDevice]] = {}
    for place in list_rank_devices(connection, run):
        places.setdefault(place.rank, {})[place.device] = place
    if rank is None:
        rank = min(places, default=0)
    if rank not in places:
        raise UnknownRankDevice("rank", rank, f"one of {', '.join(map(str, places)) or 'none'}")
    of_rank = places[rank]
    if device is None:
        device = next(iter(of_rank))
    if device not in of_rank:
        raise UnknownRankDevice("device", device, f"one of {', '.join(map(str, of_rank))}")
    return of_rank[device]


def list_rank_devices(connection: Connection, run: StoredRun, *, live: bool = False) -> list[RankDevice]:
    """All devices of all ranks, by rank; a rank without devices has the CPU.

    live   only of ranks whose newest session runs
    """
    joined = sa.select(ranks.c.rank, sessions.c.skew_ns, sessions.c.attached, sessions.c.started_ns)
    joined = joined.join(sessions, sessions.c.id == ranks.c.session_id).where(ranks.c.run_key == run.key)
    if live:
        joined = joined.where(sessions.c.state == "running")
    found: list[RankDevice] = []
    for row in connection.execute(joined.order_by(ranks.c.rank)):
        devices = (row.attached or {}).get("devices", [])
        capacities = {int(entry["index"]): entry.get("total_bytes") for entry in devices} or {series.CPU: None}
        skew_ns = display_skew_ns(row.skew_ns)
        found.extend(RankDevice(row.rank, index, skew_ns, size, row.started_ns) for index, size in capacities.items())
    return found


@dataclass(frozen=True, slots=True)
class Damage:
    """Rows that cannot be read: a chunk whose bytes changed on the disk. Times are as stored."""

    rows: int
    first_time_ns: int
    last_time_ns: int
    first_step: int
    last_step: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """Columns of the rows in a window, of equal length, and the rows that could not be read."""

    columns: dict[str, IntArray]
    damaged: list[Damage]


def load_columns(
    connection: Connection,
    run: StoredRun,
    place: RankDevice,
    stream: str,
    names: Sequence[str],
    *,
    x: Literal["time", "step"] = "time",
    first: int | None = None,
    last: int | None = None,
    since_ns: int | None = None,
) -> Loaded:
    """Read columns of the rows in a window, ordered by x, which is one of them (``time_ns`` or ``step``).

    first, last   the window, ends included: nanoseconds as stored, or steps; None is open
    since_ns      only rows from this time on, whatever x is
    Only these columns are unpacked: 100,000 rows of one column take about 10 ms.
    """
    low, high = (
        (chunks.c.first_time_ns, chunks.c.last_time_ns) if x == "time" else (chunks.c.first_step, chunks.c.last_step)
    )
    bounds = (chunks.c.rows, chunks.c.first_time_ns, chunks.c.last_time_ns, chunks.c.first_step, chunks.c.last_step)
    query = sa.select(chunks.c.data, *bounds).where(
        chunks.c.run_key == run.key,
        chunks.c.rank == place.rank,
        chunks.c.device == (series.CPU if stream == SCALARS else place.device),
        chunks.c.stream == stream,
    )
    if first is not None:
        query = query.where(high >= first)
    if last is not None:
        query = query.where(low <= last)
    if since_ns is not None:
        query = query.where(chunks.c.last_time_ns >= since_ns)
    axis = "time_ns" if x == "time" else "step"
    wanted = list(dict.fromkeys([axis, *names, *(["time_ns"] if since_ns is not None else [])]))
    parts: dict[str, list[IntArray]] = {name: [] for name in wanted}
    damaged: list[Damage] = []
    for blob, *where in connection.execute(query.order_by(chunks.c.first_time_ns, chunks.c.key)):
        try:
            chunk = codec.Chunk(blob)
            values = [chunk.column(name) for name in wanted]
        except codec.CorruptChunk:
            damaged.append(Damage(*where))
            continue
        for name, column in zip(wanted, values, strict=True):
            parts[name].append(column)
    columns = {name: np.concatenate(arrays) if arrays else np.empty(0, np.int64) for name, arrays in parts.items()}
    along = columns[axis]
    inside = np.ones(along.size, np.bool_) if x == "time" else along != series.UNKNOWN
    if first is not None:
        inside &= along >= first
    if last is not None:
        inside &= along <= last
    if since_ns is not None:
        inside &= columns["time_ns"] >= since_ns
    if not inside.all():
        columns = {name: values[inside] for name, values in columns.items()}
        along = columns[axis]
    if along.size > 1 and (along[1:] < along[:-1]).any():
        # Late batches, or a run that resumed from an earlier step. Chunks are in the order of time, and so are rows of
        # the same step after a stable sort.
        order = np.argsort(along, kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
    return Loaded(columns, damaged)


def floats(values: IntArray) -> FloatArray:
    """Whole numbers of the wire as floats; unknown becomes NaN."""
    out = values.astype(np.float64)
    out[values == series.UNKNOWN] = np.nan
    return out


def newest_chunks(connection: Connection, run_id: str, stream: str, count: int) -> Iterator[tuple[int, int, bytes]]:
    """Rank, device and data of the newest chunks of each device, the newest last."""
    of_device = sa.func.row_number().over(
        partition_by=(chunks.c.rank, chunks.c.device), order_by=chunks.c.last_time_ns.desc()
    )
    run_key = sa.select(runs.c.key).where(runs.c.id == run_id).scalar_subquery()
    numbered = sa.select(chunks.c.key, of_device.label("number")).where(
        chunks.c.run_key == run_key, chunks.c.stream == stream
    )
    newest = numbered.subquery()
    query = sa.select(chunks.c.rank, chunks.c.device, chunks.c.data).join(newest, newest.c.key == chunks.c.key)
    query = query.where(newest.c.number <= count).order_by(chunks.c.last_time_ns)
    yield from connection.execute(query).tuples()
