"""Optimizers of a dry run that have not stepped: their state does not exist yet."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Final

from vramscope.guard import guarded

_made: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_stepped: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


@guarded("the optimizers of the dry run")
def install() -> None:
    """Note from now on which optimizers are made, and which of them step."""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    make = Optimizer.__init__

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        make(self, *arguments, **options)
        _made.add(self)

    Optimizer.__init__ = __init__
    register_optimizer_step_post_hook(lambda optimizer, *_: _stepped.add(optimizer))


@guarded("the optimizers of the dry run", default=list[str]())
def unstepped() -> list[str]:
    """Return the classes of the optimizers that have not stepped, and whose parameters no other one updates."""
    updated = set().union(*(_parameters(one) for one in list(_stepped)))
    return [type(one).__name__ for one in list(_made) if one not in _stepped and _parameters(one) - updated]


def _parameters(optimizer: Any) -> set[int]:
    """Return the identities of the parameters on a GPU."""
    groups = optimizer.param_groups
    return {id(parameter) for group in groups for parameter in group["params"] if parameter.is_cuda}
