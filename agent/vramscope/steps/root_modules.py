"""The models of a process: which modules are the outermost, and what listens to their calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from vramscope.guard import guarded
from vramscope.process.live_objects import living
from vramscope.process.module_calls import CallListener, module_calls

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hook_interface import StepHooks

MOST_ROOTS: Final = 16


class RootHooks:
    """Listens to the calls of one session's root modules, given or found. It keeps none of them.

    listener   to the calls of each
    """

    def __init__(self, hooks: StepHooks, listener: CallListener) -> None:
        self._hooks = hooks
        self._listener = listener
        self._are_given = False
        self._found_once = False

    def install(self) -> None:
        """``model.train()`` and ``.eval()`` (which calls it) show a model that was made after attach, before its first call."""
        import torch

        hooks = self._hooks

        @guarded("model hook")
        def shown(module: torch.nn.Module, mode: bool = True) -> None:
            # Called for each child too, from within; the outermost comes first. A teacher's eval() makes no root of it where the
            # model that trains is known.
            if self._are_given or hooks.heard_forward:
                return
            if len(hooks.roots) < MOST_ROOTS and hooks.clock.is_training_thread():
                inner = {id(child) for root in list(hooks.roots) for child in root.modules()}
                if id(module) not in inner and next(module.parameters(), None) is not None:
                    self._hook(module)

        hooks.patches.watch(torch.nn.Module, "train", before=shown)

    def add(self, module: torch.nn.Module) -> None:
        """Add a module whose call is the forward pass of the training, as the user said."""
        self._are_given = True
        self._hook(module)

    def find(self) -> None:
        """Listen to the outermost modules that have parameters. A sweep over all objects: some 30 ms, once or twice a run."""
        for module in outermost_modules():
            self._hook(module)

    def find_if_unheard(self) -> None:
        """After the first step: a model that was made, wrapped or compiled after attach is found now."""
        if not self._hooks.heard_forward:
            self.find()

    def find_in_first_step(self) -> None:
        """Find models in the first backward pass, or at the second batch: a model made after attach exists by then."""
        if self._hooks.is_in_first_step and not self._found_once:
            self._found_once = True
            self.find_if_unheard()

    def _hook(self, module: torch.nn.Module) -> None:
        hooks = self._hooks
        if module in hooks.roots:
            return
        for extension in hooks.extensions:
            extension.found_root(module)
        hooks.roots.add(module)
        hooks.when_removed(module_calls.listen(module, self._listener))


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
