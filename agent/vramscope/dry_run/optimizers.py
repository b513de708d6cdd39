"""Optimizers of a dry run whose state does not exist yet: they have not stepped, or keep more with each step."""

from __future__ import annotations

import functools
import weakref
from typing import Any, Final

from vramscope.dry_run.later_optimizers import later_optimizers, place_now, stepping_later
from vramscope.guard import guarded
from vramscope.protocol.number_format import amount

_made: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
_lines: Final[weakref.WeakKeyDictionary[Any, tuple[str, int]]] = weakref.WeakKeyDictionary()
"""Line of the program that made an optimizer."""
_made_at: Final[set[tuple[str, int]]] = set()
"""All such lines."""
_steps: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()
ENOUGH_STEPS: Final = 2
"""Steps of an optimizer after which its state is in the peaks of all phases: the first one makes it."""


@guarded("the optimizers of the dry run")
def install() -> None:
    """Note from now on which optimizers are made, and which of them step."""
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    make = Optimizer.__init__

    @functools.wraps(make)
    def __init__(self: Any, *arguments: Any, **options: Any) -> None:  # noqa: N807
        make(self, *arguments, **options)
        _made.add(self)
        _note_line(self)

    Optimizer.__init__ = __init__
    register_optimizer_step_post_hook(_count_step)


def _count_step(optimizer: Any, *_: Any) -> None:
    _steps[optimizer] = _steps.get(optimizer, 0) + 1


@guarded("the line of an optimizer")
def _note_line(optimizer: Any) -> None:
    if (place := place_now()) is not None:
        _lines[optimizer] = place
        _made_at.add(place)


@guarded("the optimizers of the dry run", default=list[str]())
def unstepped() -> list[str]:
    """Return the classes of the optimizers that have not stepped, unless others of their kind update their parameters."""
    return [type(one).__name__ for one in _with_fewer_steps(1)]


@guarded("the optimizers of the dry run", default=list[str]())
def later() -> list[str]:
    """Return the optimizers that the running program has not made yet: ``LBFGS of train.py:30``."""
    return later_optimizers(_made_at)


@guarded("the optimizers of the dry run", default=False)
def one_steps_rarely(steps: int) -> bool:
    """Return whether an optimizer has not stepped often enough, such as that of a generator with several critic steps each.

    steps   number of steps of the program that were requested
    """
    return bool(_with_fewer_steps(min(ENOUGH_STEPS, steps)))


def _with_fewer_steps(steps: int) -> list[Any]:
    """Return the optimizers with fewer steps, unless another one updates their parameters instead and they do not step later."""
    updated = set().union(*(_parameters(one) for one, number in list(_steps.items()) if number >= steps))
    fewer = [one for one in list(_made) if _steps.get(one, 0) < steps and _parameters(one)]
    if all(_parameters(one) - updated for one in fewer):
        return fewer
    step_later = stepping_later()
    return [one for one in fewer if _parameters(one) - updated or _lines.get(one) in step_later]


@guarded("the optimizers of the dry run", default=list[str]())
def short_histories() -> list[str]:
    """Return a sentence for each optimizer that keeps pairs of vectors and will keep more: L-BFGS."""
    from torch.optim import LBFGS

    found = []
    for one in list(_steps):
        if isinstance(one, LBFGS) and (state := next(iter(one.state.values()), None)) is not None:
            kept, most = len(state.get("old_dirs") or ()), one.param_groups[0]["history_size"]
            pair_bytes = 2 * sum(parameter.nbytes for parameter in one.param_groups[0]["params"] if parameter.is_cuda)
            if kept < most and pair_bytes:
                more = f"{amount((most - kept) * pair_bytes)} more"
                found.append(
                    f"the history of {type(one).__name__} has {kept} of up to {most} pairs, and may need {more}"
                )
    return found


def _parameters(optimizer: Any) -> set[int]:
    """Return the identities of the parameters on a GPU."""
    groups = optimizer.param_groups
    return {id(parameter) for group in groups for parameter in group["params"] if parameter.is_cuda}
