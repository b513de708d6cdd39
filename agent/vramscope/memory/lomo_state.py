"""Memory of LOMO and AdaLomo. They keep no gradients, and store their state in their own dictionaries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

PACKAGE: Final = "lomo_optim"
COPIES: Final = (2, 4)
"""Number of 32-bit copies while AdaLomo updates a parameter: of a 32-bit one, and of one with fewer bits."""


def is_lomo(optimizer: Any) -> bool:
    """Return whether an optimizer is LOMO or AdaLomo."""
    return type(optimizer).__module__.partition(".")[0] == PACKAGE


def update_bytes(parameter: torch.Tensor) -> int:
    """Return the bytes that the update of one parameter takes within backward: two gradients, and 32-bit copies."""
    size = parameter.element_size()
    return int(parameter.numel() * (2 * size + COPIES[size < 4] * 4))


def state_of(optimizer: Any) -> Iterator[Any]:
    """Yield the tensors that LOMO or AdaLomo keeps from step to step; none for other optimizers."""
    if is_lomo(optimizer):
        for kept in vars(optimizer).values():
            if isinstance(kept, dict):
                yield from kept.values()
