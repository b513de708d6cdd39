"""Gradients of weights that were frozen after they had been trained. Nothing frees them, and nothing uses them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from vramscope.memory.tensor_bytes import storages

if TYPE_CHECKING:
    import torch


def frozen_gradient_bytes(
    parameters: Iterable[torch.Tensor], optimizers: Iterable[Any], device: int, idle: Collection[int]
) -> int:
    """Return the bytes of gradients on a device whose parameters require none, and that no optimizer will apply.

    optimizers   all live optimizers
    idle         identities of those that no longer step. The others may train the parameters in turn, as in a GAN
    """
    used = {
        id(one)
        for optimizer in optimizers
        if id(optimizer) not in idle
        for group in optimizer.param_groups
        for one in group["params"]
    }
    frozen: dict[int, int] = {}
    needed: set[int] = set()
    for one in parameters:
        if one.is_leaf and one.grad is not None:
            parts = dict(storages(one.grad, device))
            if one.requires_grad or id(one) in used:
                needed.update(parts)
            else:
                frozen.update(parts)
    return sum(size for key, size in frozen.items() if key not in needed)
