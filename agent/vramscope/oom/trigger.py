"""Trigger of a record: an error of memory, or the request to describe a bystander."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from vramscope.oom.forward_progress import RunningModule
from vramscope.protocol.oom_record import Frame

if TYPE_CHECKING:
    from types import FrameType

    import torch


class OomTrigger(NamedTuple):
    """What is known where the error was observed."""

    seen_by: Literal["observer", "passing", "exception", "bystander"]
    device: int | None
    asked_bytes: int | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    stack: Sequence[Frame] = ()
    running: RunningModule | None = None
    batch_size: int | None = None
    error_type: str | None = None
    error_text: str | None = None
    frames: Sequence[FrameType] = ()
    """Live frames of the thread that requested the memory."""
    moving: torch.nn.Module | None = None
    """Model that is being moved or cast."""
    thread: str | None = None
    """Name of the thread, unless it is the training's or autograd's."""
    roots: Sequence[torch.nn.Module] | None = None
    """Models that train, where they were searched for already."""

    @property
    def is_at_request(self) -> bool:
        """Whether the first of the frames is the one that requests. An error seen later has left it."""
        return self.seen_by == "observer" and bool(self.frames)

    @property
    def is_own(self) -> bool:
        """Whether this process ran out. Of a bystander, only what any thread may read quickly is read."""
        return self.seen_by != "bystander"
