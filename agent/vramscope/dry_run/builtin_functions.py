"""Wraps functions of PyTorch that programs also call in TorchScript, which knows them by identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vramscope.process.patching import Patches


def wrap(patches: Patches, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function as ``Patches.wrap`` does. In TorchScript, its wrapper is the function itself."""
    from torch.jit import _builtins

    operation = _builtins._find_builtin(getattr(owner, name))
    patches.wrap(owner, name, around)
    if operation is not None:
        _builtins._register_builtin(getattr(owner, name), operation)
