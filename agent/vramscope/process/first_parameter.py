"""The first parameter of a module, without the user's code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def first_parameter(module: torch.nn.Module) -> torch.nn.Parameter | None:
    """Return the first parameter of a module, or None.

    A class may have its own ``parameters``, which returns a list of those that are trained, say.
    """
    import torch

    return next((one for _, one in torch.nn.Module.named_parameters(module)), None)
