"""A loop of the user's own: all that is known of it is a module, an optimizer, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramscope.integrations.connection import Connection

if TYPE_CHECKING:
    from vramscope.steps.hooks import LoopHooks

FRAMEWORK: Final = "loop"


def connect(target: object, hooks: LoopHooks) -> Connection | None:
    """A module, an optimizer, or None: a loop of the user's own. None for anything else."""
    import torch

    if isinstance(target, torch.nn.Module):
        hooks.models.add(target)
    elif target is None or isinstance(target, torch.optim.Optimizer):
        if target is not None:
            hooks.lead(target)
        hooks.models.find_at_attach()
    else:
        return None
    hooks.on_first_step = hooks.models.find_if_unheard
    return Connection(FRAMEWORK)
