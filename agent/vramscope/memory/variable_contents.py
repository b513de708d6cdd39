"""What the program's variables lead to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class VariableContents(NamedTuple):
    """Objects of the program, each as often as a variable leads to it. Drop them in the call that asked for them."""

    copies: list[tuple[str, torch.Tensor]]
    """Tensors of dicts that have a model's parameters by name, with their variables: ``checkpoint['model'] (train.py:22)``."""
    tensors: list[torch.Tensor]
    models: list[torch.nn.Module]
    """Modules, without those that only other modules lead to."""
    optimizers: list[torch.optim.Optimizer]


NOTHING = VariableContents([], [], [], [])
