"""Jobs of clusters: those of a session, and the runs of a job. Sessions have them in ``attached``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol.messages import MAX_JOBS
from vramscope_server.answers.jobs import ClusterJob
from vramscope_server.store.tables import ranks, runs, sessions

KEYS: Final = ("id", "pod", "array")
"""Fields of a job by which its runs are found."""


def jobs_of(attached: Mapping[str, Any] | None) -> list[ClusterJob]:
    """Jobs of a session, from what its process attached."""
    return [
        ClusterJob(
            manager=str(job.get("manager")),
            id=job.get("id"),
            name=job.get("name"),
            array=job.get("array"),
            step=job.get("step"),
            partition=job.get("partition"),
            pod=job.get("pod"),
            namespace=job.get("namespace"),
            node=job.get("node"),
            nodes=job.get("nodes"),
            node_count=job.get("node_count"),
            restarts=job.get("restarts"),
            memory_limit_bytes=job.get("memory_limit_bytes"),
        )
        for job in (attached or {}).get("jobs", [])
    ]


def jobs_of_runs(connection: Connection, run_keys: Iterable[int]) -> dict[int, list[ClusterJob]]:
    """Jobs of the lowest rank of each run, by the run's key. 1000 runs take about 15 ms."""
    lowest = (
        sa.select(ranks.c.run_key, sa.func.min(ranks.c.rank).label("rank"))
        .where(ranks.c.run_key.in_(list(run_keys)))
        .group_by(ranks.c.run_key)
        .subquery()
    )
    query = (
        sa.select(ranks.c.run_key, sessions.c.attached["jobs"].label("jobs"))
        .join(lowest, sa.and_(lowest.c.run_key == ranks.c.run_key, lowest.c.rank == ranks.c.rank))
        .join(sessions, sessions.c.id == ranks.c.session_id)
    )
    return {int(row.run_key): jobs_of({"jobs": row.jobs or []}) for row in connection.execute(query)}


def is_of_job(job: str) -> sa.ColumnElement[bool]:
    """Condition on ``runs``: a session belongs to the job, pod or array, or to a task of the array.

    The search in the text comes first, because it decodes no JSON.
    """
    in_text = sa.cast(sessions.c.attached, sa.Text).contains(json.dumps(job)[1:-1], autoescape=True)
    exact = []
    for position in range(MAX_JOBS):
        names = [sessions.c.attached[("jobs", position, key)].as_string() for key in KEYS]
        exact += [name == job for name in names]
        exact.append(names[-1].startswith(f"{job}_", autoescape=True))
    return runs.c.key.in_(sa.select(sessions.c.run_key).where(in_text, sa.or_(*exact)))
