"""Jobs of clusters: those of a session, and the runs of a job. Sessions have them in ``attached``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope.protocol.messages import MAX_JOBS
from vramscope_server.answers.jobs import ClusterJob
from vramscope_server.store.tables import ranks, sessions

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
        sa.select(ranks.c.run_key, sessions.c.attached)
        .join(lowest, sa.and_(lowest.c.run_key == ranks.c.run_key, lowest.c.rank == ranks.c.rank))
        .join(sessions, sessions.c.id == ranks.c.session_id)
    )
    return {int(row.run_key): jobs_of(row.attached) for row in connection.execute(query)}


def runs_of_job(connection: Connection, job: str) -> list[int]:
    """Keys of the runs with a session that belongs to the job, pod or array, or to a task of the array.

    Reads all sessions. The search in the text comes first, because it decodes no JSON.
    """
    job = job.replace("\0", "\ufffd")
    in_text = sa.cast(sessions.c.attached, sa.Text).contains(json.dumps(job)[1:-1], autoescape=True)
    exact = []
    for position in range(MAX_JOBS):
        names = [sessions.c.attached[("jobs", position, key)].as_string() for key in KEYS]
        exact += [name == job for name in names]
        exact.append(names[-1].startswith(f"{job}_", autoescape=True))
    query = sa.select(sessions.c.run_key).where(in_text, sa.or_(*exact)).distinct()
    return list(connection.execute(query).scalars())
