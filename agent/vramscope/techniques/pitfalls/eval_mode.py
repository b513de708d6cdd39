"""Pitfall: a model that uses checkpoints in training mode only trains in eval mode and saves all activations.

Such a model has a method that calls PyTorch's checkpoint and reads ``self.training``. If the method also reads a switch that
is off, the switch is the reason, and nothing is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final

from vramscope.protocol import messages
from vramscope.techniques.detectors import checkpointing
from vramscope.techniques.observation import TrainingState

if TYPE_CHECKING:
    import torch

CHECKPOINTS: Final = ("checkpoint", "checkpoint_sequential")


def find(training: TrainingState) -> messages.Pitfall | None:
    observation = training.module_calls
    if (
        observation is None
        or not training.is_sure
        or not observation.in_eval_mode
        or observation.regions.recomputed(training.modules, observation.called)
        or observation.regions.functions
    ):
        return None
    if checkpointing.declaration(training):
        return None  # reported by the detector: declared, but not observed
    for module in training.modules:
        if id(module) in observation.in_eval_mode and any(p.requires_grad for p in module.parameters()):
            method = _gated_method(module)
            if method is not None:
                name = method.__qualname__
                return training.finding(
                    "checkpointing-in-eval-mode",
                    f"{name} uses checkpoints in training mode only, but the model trains in eval mode. Nothing was recomputed "
                    f"in {training.observed} observed steps, and all activations are saved. Dropout is off, too.",
                    "call model.train() before the loop, and again after each evaluation",
                    (method.__code__.co_filename, method.__code__.co_firstlineno),
                )
    return None


def _gated_method(module: torch.nn.Module) -> FunctionType | None:
    """Method that calls checkpoint and reads ``self.training``, without a switch that is off."""
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
    """Whether a method calls PyTorch's checkpoint, by any name or as an attribute of its module."""
    library = sys.modules.get("torch.utils.checkpoint")
    if library is None:
        return False
    functions = [getattr(library, name) for name in CHECKPOINTS]
    known = [method.__globals__[name] for name in names if name in method.__globals__]
    if any(value is function for value in known for function in functions):
        return True
    return not names.isdisjoint(CHECKPOINTS) and any(value in (library, sys.modules["torch"]) for value in known)


def _is_switched_off(module: torch.nn.Module, names: set[str]) -> bool:
    """Whether the method reads an attribute of the module or its configuration that is False, None or 0."""
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
    """Names that a function and its inner functions read."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
