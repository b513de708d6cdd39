"""Message of an out-of-memory error as numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from vramscope.oom_diagnosis.message_kinds import KINDS


@dataclass(frozen=True, slots=True)
class Process:
    """One process that the message names. ``mine``: the one whose request failed."""

    pid: int | None
    used_bytes: int
    mine: bool


class ProcessFields(TypedDict):
    """Process of a message, for JSON."""

    pid: int | None
    used_bytes: int
    mine: bool


class MessageFields(TypedDict):
    """Fields of a message, for JSON."""

    kind: str
    text: str
    certain: bool
    device: int | None
    asked_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    limit_bytes: int | None
    process_bytes: int | None
    allocated_bytes: int | None
    private_pools_bytes: int | None
    reserved_bytes: int | None
    unallocated_bytes: int | None
    worker: int | None
    wording: str
    shortened: bool
    errors: int
    processes: list[ProcessFields]
    rounding_bytes: dict[str, int]
    kind_words: str
    """Kind of the message in words."""


@dataclass(frozen=True, slots=True)
class Message:
    """Numbers of a message; None where it has none."""

    kind: str
    """Key of KINDS."""
    text: str
    """The text itself, from the beginning of the error."""
    certain: bool = True
    """False: the same text is used for other errors too."""
    device: int | None = None
    asked_bytes: int | None = None
    """The request as the allocator rounds it: 20 MiB for a tensor of 1.1 MB."""
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    """Limit of set_per_process_memory_fraction."""
    process_bytes: int | None = None
    """Device memory of this process, with CUDA's context."""
    allocated_bytes: int | None = None
    private_pools_bytes: int | None = None
    """Free blocks in the private pools of CUDA graphs. ``allocated_bytes`` contains them."""
    reserved_bytes: int | None = None
    unallocated_bytes: int | None = None
    """Reserved and not allocated."""
    processes: tuple[Process, ...] = ()
    rounding_bytes: dict[str, int] = field(default_factory=dict)
    """Error of each number, because the text has two decimals."""
    worker: int | None = None
    """Process id of the DataLoader worker."""
    wording: str = ""
    """Versions of PyTorch with this format."""
    shortened: bool = False
    """Whether the text was cut."""
    errors: int = 1
    """Number of errors in the text. This is the last; 0: none is known."""

    later_exception: str = ""
    """Class of another exception that ends a later traceback of the text."""
    sets_expandable: bool = False
    """Whether the text shows that expandable segments are on."""

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown"

    def as_dict(self) -> MessageFields:
        """Return the fields for JSON."""
        return {
            "kind": self.kind,
            "text": self.text,
            "certain": self.certain,
            "device": self.device,
            "asked_bytes": self.asked_bytes,
            "total_bytes": self.total_bytes,
            "free_bytes": self.free_bytes,
            "limit_bytes": self.limit_bytes,
            "process_bytes": self.process_bytes,
            "allocated_bytes": self.allocated_bytes,
            "private_pools_bytes": self.private_pools_bytes,
            "reserved_bytes": self.reserved_bytes,
            "unallocated_bytes": self.unallocated_bytes,
            "worker": self.worker,
            "wording": self.wording,
            "shortened": self.shortened,
            "errors": self.errors,
            "processes": [{"pid": p.pid, "used_bytes": p.used_bytes, "mine": p.mine} for p in self.processes],
            "rounding_bytes": dict(self.rounding_bytes),
            "kind_words": KINDS[self.kind],
        }
