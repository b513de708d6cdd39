"""The modules that a program trains on a GPU, and the begin of their forward passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.process.module_calls import CallListener, module_calls
from vramscope.steps.root_modules import outermost_modules

if TYPE_CHECKING:
    import torch

OUTSIDE_OF_BACKWARD: Final = -1


def is_trained(module: torch.nn.Module) -> bool:
    """Whether a module has parameters on a GPU that need gradients."""
    return any(parameter.requires_grad and parameter.is_cuda for parameter in module.parameters())


def trained_roots() -> list[torch.nn.Module]:
    """Return the outermost modules that are trained on a GPU."""
    return [module for module in outermost_modules() if is_trained(module)]


def before_each_forward(call: Callable[[], None]) -> None:
    """Call the function before a trained module runs forward with gradients, its parts included."""
    import torch

    @guarded("a change of the dry run")
    def before(module: Any, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == OUTSIDE_OF_BACKWARD and is_trained(module):
            call()

    module_calls.listen_to_all(CallListener(before))


def before_first_forward(call: Callable[[], None]) -> None:
    """Call the function once, before the first forward pass of a trained module."""
    is_first = True

    def once() -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            call()

    before_each_forward(once)


def transformers_models(roots: list[torch.nn.Module]) -> list[Any]:
    """Return the outermost models of Transformers in these modules."""
    library = sys.modules.get("transformers.modeling_utils")
    if library is None:
        return []
    found: list[Any] = []
    inside: set[int] = set()
    for root in roots:
        for module in root.modules():
            if id(module) not in inside and isinstance(module, library.PreTrainedModel):
                found.append(module)
                inside |= {id(part) for part in module.modules()}
    return found
