"""Ranks of running runs, and what their summaries have, for ``/metrics``."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.store.project_scope import visible
from vramscope_server.store.rank_summary import RankSummary, decode_summary
from vramscope_server.store.tables import ranks, runs, sessions


@dataclass(frozen=True, slots=True)
class LiveRank:
    """A rank whose newest session runs, of a running run."""

    run_id: str
    name: str
    project: str
    rank: int
    started_ns: int
    """Start of its session, by its own clock."""
    capacities: dict[int, int | None]
    """Memory of each device, in bytes."""
    summary: RankSummary


def list_live_ranks(connection: Connection, limit: int) -> tuple[list[LiveRank], int]:
    """Visible live ranks, those of the newest runs first, and the number of all of them."""
    of_session = sessions.c.id == ranks.c.session_id
    conditions = (runs.c.state == "running", sessions.c.state == "running", visible(connection, runs.c.project))
    joined = ranks.join(sessions, of_session).join(runs, runs.c.key == ranks.c.run_key)
    total = connection.execute(sa.select(sa.func.count()).select_from(joined).where(*conditions)).scalar_one()
    columns = (
        runs.c.id,
        runs.c.name,
        runs.c.project,
        ranks.c.rank,
        ranks.c.summary,
        sessions.c.started_ns,
        sessions.c.attached,
    )
    newest = (runs.c.started_ns.desc(), runs.c.key.desc(), ranks.c.rank)
    query = sa.select(*columns).select_from(joined).where(*conditions).order_by(*newest).limit(limit)
    found = [
        LiveRank(
            run_id=row.id,
            name=row.name,
            project=row.project,
            rank=row.rank,
            started_ns=row.started_ns,
            capacities={one["index"]: one.get("total_bytes") for one in (row.attached or {}).get("devices", [])},
            summary=decode_summary(row.summary),
        )
        for row in connection.execute(query)
    ]
    return found, int(total)
