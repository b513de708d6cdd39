"""Which of NVML's processes is this one.

NVML names processes by the host's numbers. In a container this process has another number, which may even be that of a process of
the host. Its own memory then follows by elimination, or is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vramscope.protocol.series import UNKNOWN


class ProcessMemory(NamedTuple):
    """Bytes of this process and of all others on one device."""

    own_bytes: int = UNKNOWN
    others_bytes: int = UNKNOWN
    own_pid: int | None = None
    """Number of this process as NVML reports it; None if unknown."""


def find_own(
    running: Mapping[int, int | None], own_pid: int, reserved_bytes: int | None, used_bytes: int | None
) -> ProcessMemory:
    """Find this process among those that NVML reports.

    running         bytes by process; None where NVML does not report them
    own_pid         number of this process in its own namespace
    reserved_bytes  lower bound of what it has on the device: PyTorch's reserved memory; None if unknown
    used_bytes      memory in use on the whole device; None if unknown

    Its own number counts, unless NVML reports less for it than PyTorch reserved: then it is another process, or PyTorch has
    released memory since, and nothing is known. Without its own number, this process is the only one with enough memory, if NVML
    reports all of them: what no process accounts for must then be less than what PyTorch reserved.
    """
    enough = reserved_bytes or 0
    own = own_pid if own_pid in running else None
    if own is not None and (known := running[own]) is not None and known < enough:
        return ProcessMemory()
    if own is None and enough and used_bytes is not None:
        sizes = {pid: size for pid, size in running.items() if size is not None}
        is_complete = len(sizes) == len(running) and used_bytes - sum(sizes.values()) < enough
        fitting = [pid for pid, size in sizes.items() if size >= enough] if is_complete else []
        own = fitting[0] if len(fitting) == 1 else None
    if own is None:
        return ProcessMemory()
    own_bytes = running[own]
    others = [size for pid, size in running.items() if pid != own]
    known_others = [size for size in others if size is not None]
    return ProcessMemory(
        UNKNOWN if own_bytes is None else own_bytes,
        sum(known_others) if len(known_others) == len(others) else UNKNOWN,
        own,
    )
