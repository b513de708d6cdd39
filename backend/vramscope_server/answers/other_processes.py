"""Other processes on the devices of a run."""

from __future__ import annotations

from typing_extensions import TypedDict


class ProcessName(TypedDict):
    """Identity of another process. What its system does not let the agent read is null."""

    pid: int
    """Process id; in a container it may be the host's, and then the rest is null."""
    command: str | None
    """Shortened command line, with secrets removed; of another user's process only program and script."""
    user: str | None
    """Name of its user, or the number."""
    container: str | None
    """First 12 digits of the container's id."""
    manager: str | None
    """Manager of its job: `slurm`, `kubernetes`, `torchrun` or `mpi`."""
    job: str | None
    """Identifier of its job."""
    job_name: str | None
    """Name of its job."""
    pod: str | None
    """Name of its pod in Kubernetes, or the pod's UID."""


class OtherProcessAtError(ProcessName):
    """Another process on the device at an error."""

    used_bytes: int | None
    """Device memory."""
    before_bytes: int | None
    """Device memory `before_seconds` earlier; 0 if it was not on the device."""
    before_seconds: int | None
    """Time between that and the error: a minute, or less if the run is younger."""


class OtherProcessOfRun(ProcessName):
    """Another process that was on a device of the run."""

    rank: int
    """Rank that saw it."""
    device: int
    """Index of the device in that rank."""
    rank_of_run: int | None
    """Rank of this run that it is; null if it is none."""
    series: str | None
    """Series of samples with its memory: `other_process_1_bytes` to `other_process_4_bytes`; null if it has none."""
    used_bytes: int | None
    """Device memory by the newest report; reports are a few seconds apart."""
    peak_bytes: int | None
    """Highest device memory."""
    on_device: bool
    """Whether it was on the device by the newest report."""
    first_seconds: float
    """Time of the first report, since 1970."""
    last_seconds: float
    """Time of the newest report, since 1970."""
