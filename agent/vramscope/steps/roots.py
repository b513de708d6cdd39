"""The models of a process: which modules are the outermost, and the hook that lives in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.heap import living

if TYPE_CHECKING:
    import torch

MOST_ROOTS: Final = 16


class ModuleHook:
    """A hook that lives in the user's module, and so goes where the module goes: into copies, files and compilers."""

    __slots__ = ("_call", "_is_compiling")

    def __init__(self, call: Callable[..., None]) -> None:
        import torch

        self._call = call
        self._is_compiling = torch.compiler.is_compiling

    def __call__(self, *args: Any) -> None:
        # torch.compile traces hooks into its graph: this test is constant there, and nothing of ours is left in it.
        if not self._is_compiling():
            self._call(*args)

    def __deepcopy__(self, memo: Any) -> ModuleHook:
        return self  # an EMA copy of the model must not copy the session (its locks cannot be copied)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickled model must load where vramscope is not installed: there the hook is a function that does nothing.
        return (getattr, (contextlib.nullcontext(), "__exit__"))


def outermost_modules(modules: list[torch.nn.Module] | None = None) -> list[torch.nn.Module]:
    """Modules with parameters that no other module contains, largest first, at most MOST_ROOTS; of all that live, or of these."""
    if modules is None:
        from torch import nn

        modules = living(nn.Module)
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    sized = []
    for module in modules:
        if id(module) not in inner:
            size = sum(p.numel() for p in module.parameters())
            if size:
                sized.append((size, module))
    sized.sort(key=lambda pair: -pair[0])
    return [module for _, module in sized[:MOST_ROOTS]]
