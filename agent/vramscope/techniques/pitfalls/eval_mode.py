"""A model that checkpoints itself while it is in training mode only, and is in eval mode while it trains: it keeps everything.

Which model that is, its own methods tell: one that calls PyTorch's checkpoint and asks ``self.training``. Where a switch of its
own is off in that method, it is the switch, and nothing is said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from vramscope.protocol import messages
from vramscope.techniques.detectors import checkpointing
from vramscope.techniques.observation import Facts

if TYPE_CHECKING:
    import torch

CHECKPOINTS: Final = ("checkpoint", "checkpoint_sequential")


def find(facts: Facts) -> messages.Finding | None:
    heard = facts.heard
    if (
        heard is None
        or not facts.is_sure
        or not heard.in_eval_mode
        or heard.regions.recomputed(facts.modules, heard.called)
        or heard.regions.functions
    ):
        return None
    if checkpointing.declaration(facts):
        return None  # that it was declared and is not seen says it
    for module in facts.modules:
        if id(module) in heard.in_eval_mode and any(p.requires_grad for p in module.parameters()):
            method = _gate(module)
            if method is not None:
                name = method.__qualname__
                return facts.finding(
                    "checkpointing-in-eval-mode",
                    f"{name} checkpoints in training mode only, and the model is in eval mode while it trains: nothing was run "
                    f"again in {facts.observed} observed steps, and every activation is kept. Dropout is off, too.",
                    "call model.train() before the loop, and again after each evaluation",
                    (method.__code__.co_filename, method.__code__.co_firstlineno),
                )
    return None


def _gate(module: torch.nn.Module) -> FunctionType | None:
    """The method that calls checkpoint and asks for the mode, with no switch in it that is off."""
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch."):
            continue
        for method in vars(kind).values():
            if isinstance(method, FunctionType):
                names = set(_names(method.__code__))
                if "training" in names and _calls_checkpoint(method, names):
                    return None if _is_switched_off(module, names) else method
    return None


def _calls_checkpoint(method: FunctionType, names: set[str]) -> bool:
    """By a name that is PyTorch's function, or as an attribute of its module, whatever that is called here."""
    library = sys.modules.get("torch.utils.checkpoint")
    if library is None:
        return False
    functions = [getattr(library, name) for name in CHECKPOINTS]
    known = [method.__globals__[name] for name in names if name in method.__globals__]
    if any(value is function for value in known for function in functions):
        return True
    return not names.isdisjoint(CHECKPOINTS) and any(value in (library, sys.modules["torch"]) for value in known)


def _is_switched_off(module: torch.nn.Module, names: set[str]) -> bool:
    """Whether the method reads anything of the module's own, or of its configuration, that is False, None or 0."""
    own = {name: value for name, value in vars(module).items() if name != "training"}
    off = [name for name, value in own.items() if _is_off(value)]
    off += [name for config in own.values() for name, value in _fields(config) if _is_off(value)]
    return not names.isdisjoint(off)


def _is_off(value: Any) -> bool:
    return value is None or value is False or (type(value) is int and value == 0)


def _fields(config: Any) -> list[tuple[str, Any]]:
    fields = getattr(config, "__dict__", None)
    return list(fields.items()) if isinstance(fields, dict) else []


def _names(code: CodeType) -> Iterator[str]:
    """Names that a function reads, with those of the functions that are made in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
