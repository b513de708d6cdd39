"""The batch that trains now, as far as the arguments of the root modules show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class BatchContext:
    """What is known of the running batch. ``steps/hooks.py`` writes it; leaks and out-of-memory records read it.

    Shapes are those of the first argument of a root module's forward pass. Roots are named by their id, never dereferenced.
    """

    def __init__(self) -> None:
        self.rows: int | None = None
        """Batch size of the most recent forward pass; None if its first argument is no tensor."""
        self.latest: tuple[int, tuple[int, ...]] | None = None
        """Root and input shape of the most recent forward pass with gradients."""
        self.largest: dict[int, torch.Size] = {}
        """Largest input shape of this step, by root."""
        self.largest_before: dict[int, torch.Size] = {}
        """Largest input shape of the previous step, by root."""
        self.forwards = 0
        """Consecutive forward passes of the same root since the last backward pass."""
        self.evaluates = False
        """True if the most recent forward pass ran a model in eval mode, with gradients on, after a training step."""

    def forward_with_gradients(self, root: int, shape: torch.Size) -> None:
        """A forward pass with gradients begins, on an input of this shape."""
        self.latest = root, shape
        known = self.largest.get(root)
        if known is None or shape.numel() > known.numel():
            self.largest[root] = shape

    def forward_failed(self) -> None:
        """The most recent forward pass raised: no backward pass will follow it."""
        self.forwards = max(0, self.forwards - 1)

    def step_ended(self) -> Mapping[int, torch.Size]:
        """Starts a new step; returns the largest input shapes of the one that ended."""
        ended, self.largest = self.largest, {}
        self.largest_before = ended
        return ended
