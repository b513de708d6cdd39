"""The models of a process: which modules are the outermost, and the hooks that live in them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.integrations import zero
from vramscope.process.live_objects import living

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hooks import LoopHooks

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


class RootHooks:
    """In front of and behind the calls of one session's root modules, given or found. It keeps none of them.

    before, after   called as forward hooks are
    """

    def __init__(self, hooks: LoopHooks, before: Callable[..., None], after: Callable[..., None]) -> None:
        self._hooks = hooks
        self._before, self._after = before, after
        self._are_given = False
        self._found_once = False

    def install(self) -> None:
        """``model.train()`` and ``.eval()`` (which calls it) show a model that was made after attach, before its first call."""
        import torch

        hooks = self._hooks

        @guarded("model hook")
        def shown(module: torch.nn.Module) -> None:
            # Called for each child too, from within; the outermost comes first. A teacher's eval() makes no root of it where the
            # model that trains is known.
            if self._are_given or hooks.heard_forward:
                return
            if len(hooks.roots) < MOST_ROOTS and hooks.clock.is_training_thread():
                inner = {id(child) for root in list(hooks.roots) for child in root.modules()}
                if id(module) not in inner and next(module.parameters(), None) is not None:
                    self._hook(module)

        def train(original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            shown(module)
            return original(module, *args, **kwargs)

        hooks.fronts.put(torch.nn.Module, "train", train)

    def add(self, module: torch.nn.Module) -> None:
        """A module whose call is the forward of the training (or its evaluation, without gradients), as the user told us."""
        self._are_given = True
        self._hook(module)

    def find(self) -> None:
        """Hook the outermost modules that have parameters. A sweep over all objects: some 30 ms, once or twice a run."""
        for module in outermost_modules():
            self._hook(module)

    def find_if_unheard(self) -> None:
        """After the first step: a model that was made, wrapped or compiled after attach is found now."""
        if not self._hooks.heard_forward:
            self.find()

    def find_in_first_step(self) -> None:
        """In the first backward, or at the second batch: a model that was made after attach stands by then."""
        if self._hooks.on_first_step is not None and not self._found_once:
            self._found_once = True
            self.find_if_unheard()

    def _hook(self, module: torch.nn.Module) -> None:
        hooks = self._hooks
        if module in hooks.roots:
            return
        if getattr(module, "_compiled_call_impl", None) is not None:
            return  # module.compile(): a hook would be traced into the graph and break it; backward still tells
        if zero.is_engine(module):
            hooks.engines.found(module)
        hooks.roots.add(module)
        hooks.when_removed(module.register_forward_pre_hook(ModuleHook(self._before), with_kwargs=True).remove)
        # (always_call: also where the forward ends with an error, which costs nothing until then)
        hooks.when_removed(module.register_forward_hook(ModuleHook(self._after), always_call=True).remove)


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
