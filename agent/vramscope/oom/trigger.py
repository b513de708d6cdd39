"""What whoever met an error of memory tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vramscope.oom.forward_progress import Running
from vramscope.protocol.oom_record import Frame

if TYPE_CHECKING:
    from types import FrameType

    import torch


class Error(NamedTuple):
    """One error, or of another rank's how this one stands."""

    seen_by: Any
    device: int | None
    asked_bytes: int | None
    total_bytes: int | None = None
    free_bytes: int | None = None
    limit_bytes: int | None = None
    stack: Sequence[Frame] = ()
    running: Running | None = None
    batch_size: int | None = None
    error_type: str | None = None
    error_text: str | None = None
    frames: Sequence[FrameType] = ()
    """of the thread that asked, while they stand"""
    moving: torch.nn.Module | None = None
    """the model that is just being moved or cast"""
    thread: str | None = None
    """its name, where it is neither the training's nor autograd's"""
    roots: Sequence[torch.nn.Module] | None = None
    """the models that train, where they were looked for already"""

    @property
    def here(self) -> bool:
        """Whether this process ran out. Of a bystander only that is read which any thread may read, and quickly."""
        return bool(self.seen_by != "bystander")
