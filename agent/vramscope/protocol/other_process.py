"""Another process on a watched device: who it is, and its device memory.

The agent sends it in an event of the kind :data:`EVENT`, and in an out-of-memory record. None means not known.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vramscope.protocol.messages import Name, Text, Whole, Word

EVENT: Final = "device_process"
"""Kind of the event. Data: the fields of :class:`Reported`; ``series`` is a name of ``series.OTHER_PROCESSES`` if it has one.
The newest of a process counts."""
MAX_NEIGHBOURS: Final = 1024
"""Maximum number of processes in an out-of-memory record: those with most memory."""
MIB: Final = 1 << 20
GREW_BYTES: Final = 64 * MIB
"""Smallest difference within a minute that counts as growth."""


class OtherProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Another process on the device, as NVML reports it, with what the system says about it."""

    pid: Whole
    """Number of the process. In a container it may be the host's; the other fields are unknown then."""
    used_bytes: Whole | None
    before_bytes: Whole | None = None
    """Of a record: its bytes ``before_seconds`` earlier. 0: it was not on the device then."""
    before_seconds: Whole | None = None
    command: Text | None = None
    """Shortened command line, with secrets removed. Of another user's process: program and script only."""
    user: Name | None = None
    container: Name | None = None
    """First 12 digits of the container's id."""
    manager: Word | None = None
    """Manager of its job, as in ``messages.Job``."""
    job: Name | None = None
    """Identifier of its job."""
    job_name: Name | None = None
    pod: Name | None = None
    """Name of its pod in Kubernetes, or the pod's UID."""

    @property
    def grown_bytes(self) -> int | None:
        """Growth since ``before_seconds``; None if unknown."""
        known = self.used_bytes is not None and self.before_bytes is not None
        return (self.used_bytes or 0) - (self.before_bytes or 0) if known else None

    @property
    def words(self) -> str:
        """Name in one line: ``pid 4242 (python train.py, user alice, slurm job 17)``."""
        return name_words(
            self.pid, self.command, self.user, self.container, self.manager, self.job, self.pod, self.job_name
        )


class Reported(OtherProcess, frozen=True, kw_only=True):
    """Data of an event. A value that is not known is left out."""

    used_bytes: Whole | None = None
    device: Whole
    series: str | None = None
    peak_bytes: Whole | None = None
    ended: bool = False
    """True: it has left the device."""


def name_words(
    pid: int | None,
    command: str | None,
    user: str | None,
    container: str | None,
    manager: str | None,
    job: str | None,
    pod: str | None,
    job_name: str | None = None,
) -> str:
    """Return a process's name in one line, from what is known of it."""
    named = f" {job_name}" if job_name else ""
    known = [
        command,
        f"user {user}" if user else None,
        f"{manager} job {job}{named}" if job else None,
        f"pod {pod}" if pod else None,
        f"container {container}" if container else None,
    ]
    facts = ", ".join(one for one in known if one)
    return f"pid {pid} ({facts})" if facts else f"pid {pid}"
