"""Data read from PyTorch for one window. The training thread passes it to the thread that packs windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from vramscope.memory.pytorch_snapshot import AllocatorSnapshot
from vramscope.protocol import series

if TYPE_CHECKING:
    from vramscope.recording.address_owners import Owners
    from vramscope.recording.leaked_addresses import LeakedAddresses


class Mark(NamedTuple):
    """A change of step or phase."""

    time_us: int
    step: int
    """Number of the running step, from 1."""
    phase: int


@dataclass
class DeviceFacts:
    """Facts about one device that no snapshot has."""

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
    """Maximum number of events in the history."""
    tag: str
    """Metadata of the agent's events: the tag, the mark's number and, after a dot, the module's."""
    start: AllocatorSnapshot
    end: AllocatorSnapshot
    facts: list[DeviceFacts]
    marks: list[Mark]
    modules: list[str]
    notes: list[str]
    is_users: bool = False
    """True if the history was the user's own: it began before, and continues."""
    idents: dict[int, str] = field(default_factory=dict)
    """Ids of the artifacts by device; random for others."""
    settings_changed: list[int] = field(default_factory=list)
    """Marks at which the allocator's settings changed."""
    emptied: list[int] = field(default_factory=list)
    """Marks at which empty_cache() was called."""
    owners: Owners | None = None
    held: LeakedAddresses | None = None
