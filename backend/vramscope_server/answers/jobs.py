"""A job of a cluster."""

from __future__ import annotations

from typing_extensions import TypedDict


class ClusterJob(TypedDict):
    """A job that a process belongs to, or a pod."""

    manager: str
    """`slurm`, `kubernetes`, `ray`, `torchrun` or `mpi`."""
    id: str | None
    """Identifier that all processes of the job share."""
    name: str | None
    """Name of the job."""
    array: str | None
    """Array of Slurm and the task in it, as in `4242_7`."""
    step: str | None
    """Step of the job."""
    partition: str | None
    """Partition of the cluster."""
    pod: str | None
    """Name of the pod."""
    namespace: str | None
    """Namespace in Kubernetes."""
    node: str | None
    """Node of the process, by the manager's name."""
    nodes: str | None
    """All nodes of the job, as the manager writes the list."""
    node_count: int | None
    """Number of nodes."""
    restarts: int | None
    """Number of restarts of the job."""
    memory_limit_bytes: int | None
    """Host memory that the job may use on this node."""
