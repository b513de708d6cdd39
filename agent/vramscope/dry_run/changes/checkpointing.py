"""Activation checkpointing: by the model's own function if it is a Transformers model, else of its repeated blocks."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from vramscope.dry_run.changes.change import Change
from vramscope.dry_run.changes.trained_modules import before_first_forward, trained_roots, transformers_models
from vramscope.process.live_objects import living

if TYPE_CHECKING:
    import torch


class Checkpointing(Change):
    """Blocks keep their inputs only, and run forward again in the backward pass."""

    name = "checkpointing"
    reason = "no model has repeated blocks"

    def begin(self) -> None:
        """Change the models at their first forward pass."""
        before_first_forward(self._change)

    def _change(self) -> None:
        roots = trained_roots()
        inside: set[int] = set()
        for model in transformers_models(roots):
            if model.supports_gradient_checkpointing:
                self._enable(model)
                inside |= {id(module) for module in model.modules()}
        for root in roots:
            blocks = {name: block for name, block in repeated_blocks(root).items() if id(block) not in inside}
            for block in blocks.values():
                block.forward = _checkpointed(block)
            if blocks:
                self._note(blocks)

    def _enable(self, model: Any) -> None:
        word = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
        enable = f"{word}_checkpointing_enable"
        getattr(model, enable)()
        library = sys.modules.get("transformers.trainer")
        if library is not None and living(library.Trainer):
            self.applied(type(model).__name__, f"TrainingArguments({word}_checkpointing=True)")
        else:
            self.applied(type(model).__name__, f"model.{enable}()")

    def _note(self, blocks: dict[str, torch.nn.Module]) -> None:
        for kind, number in Counter(type(block) for block in blocks.values()).items():
            names = [name for name, block in blocks.items() if type(block) is kind]
            where = names[0] if number == 1 else f"{names[0]} to {names[-1]}"
            name = _own_name(kind)
            self.applied(
                f"{number} {name} ({where})",
                f"x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)  # for each {name}",
            )


def _own_name(kind: type) -> str:
    """Return the name of a module's class in the program. FSDP2 replaces the class by a generated one."""
    return kind.__mro__[2].__name__ if kind.__name__.startswith("FSDP") and len(kind.__mro__) > 2 else kind.__name__


def _checkpointed(block: torch.nn.Module) -> Any:
    import torch
    from torch.utils.checkpoint import checkpoint

    forward = block.forward

    @functools.wraps(forward)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and block.training:
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return checkpointed


def repeated_blocks(root: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the outermost modules with parts of their own whose class occurs at least twice in containers, by name."""
    from torch import nn

    containers = nn.Sequential, nn.ModuleList, nn.ModuleDict
    in_containers = [
        child
        for module in root.modules()
        if isinstance(module, containers)
        for child in module.children()
        if not isinstance(child, containers) and next(child.children(), None) is not None
    ]
    repeated = {kind for kind, number in Counter(map(type, in_containers)).items() if number > 1}
    found: dict[str, nn.Module] = {}
    inside: set[int] = set()
    for name, module in root.named_modules():
        if type(module) in repeated and id(module) not in inside and next(module.parameters(), None) is not None:
            found[name] = module
            inside |= {id(part) for part in module.modules()}
    return found
