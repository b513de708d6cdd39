"""What was read of PyTorch for one window, as it gave it: handed from the training thread to the one that packs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.protocol import series

if TYPE_CHECKING:
    from vramscope.recording.leaked_addresses import LeakedAddresses
    from vramscope.recording.owners import Owners

Tree = dict[str, Any]
"""torch.cuda.memory._snapshot()"""


class Mark(NamedTuple):
    """A moment at which step or phase changed."""

    time_us: int
    step: int
    """number of the step that runs, from 1"""
    phase: int


@dataclass
class DeviceFacts:
    """Of one device, what no snapshot tells."""

    device: int
    name: str
    total_bytes: int
    free_bytes: int
    limit_bytes: int | None
    start_counters: dict[str, int]
    end_counters: dict[str, int] = field(default_factory=dict)
    peak_allocated_bytes: int = series.UNKNOWN
    peak_reserved_bytes: int = series.UNKNOWN


@dataclass
class RawWindow:
    """One window of all devices. The trees are emptied while they are converted."""

    reason: str
    first_step: int
    last_step: int
    most_events: int
    """that the history could hold"""
    tag: str
    """metadata of our events: the tag, the mark's number and, behind a dot, the module's"""
    start: Tree
    end: Tree
    facts: list[DeviceFacts]
    marks: list[Mark]
    modules: list[str]
    notes: list[str]
    stacks: bool
    is_the_users: bool = False
    """the history was the user's own: it began somewhere before, and goes on"""
    idents: dict[int, str] = field(default_factory=dict)
    """by device, what the artifacts shall be called; of others: something fresh"""
    settings_changed: list[int] = field(default_factory=list)
    """marks at which the allocator's settings were changed"""
    emptied: list[int] = field(default_factory=list)
    """marks at which empty_cache() was called"""
    owners: Owners | None = None
    held: LeakedAddresses | None = None
