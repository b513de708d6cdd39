"""Jobs of clusters: those of a session, and the runs of a job. Sessions have them in ``attached``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from vramscope_server.answers.jobs import ClusterJob
from vramscope_server.store.tables import ranks, run_jobs, sessions

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


def names_of(attached: Mapping[str, Any] | None) -> set[str]:
    """Names by which the run of a session is found: of its jobs, pods and arrays. A task ``4242_7`` also counts as ``4242``."""
    found: set[str] = set()
    for job in (attached or {}).get("jobs", []):
        found.update(str(job[key]) for key in KEYS if job.get(key) is not None)
        parts = str(job.get("array") or "").split("_")
        found.update("_".join(parts[:end]) for end in range(1, len(parts)))
    return {name.replace("\0", "\ufffd") for name in found if name}


def runs_of_job(job: str) -> sa.Select[tuple[int]]:
    """Keys of the runs with a session that belongs to the job, pod or array, or to a task of the array."""
    return sa.select(run_jobs.c.run_key).where(run_jobs.c.name == job.replace("\0", "\ufffd"))
