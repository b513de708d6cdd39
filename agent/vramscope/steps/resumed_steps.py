"""Number of steps that an optimizer had made before its first one here, from its own state. A checkpoint restores it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import torch

STEP: Final = "step"
"""Key of the state of Adam, Adagrad, RMSprop and others that counts the steps of a parameter."""


def steps_made(optimizer: torch.optim.Optimizer) -> int:
    """Steps so far; 0 if the optimizer is new or counts none (SGD). A single one only made its state (DeepSpeed).

    Waits for the GPU once if the count lies there (fused).
    """
    import torch

    for state in list(optimizer.state.values())[:1]:
        made = state.get(STEP) if isinstance(state, dict) else None
        if isinstance(made, torch.Tensor):
            if made.numel() != 1 or (made.is_cuda and torch.cuda.is_current_stream_capturing()):
                return 0
            made = made.item()
        if isinstance(made, (int, float)):
            return int(made) if made > 1 else 0
    return 0
