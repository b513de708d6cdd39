"""Gradient accumulation over two micro-batches of half the size: the same effective batch.

Trainers do it by their arguments. In a plain loop each second call of an optimizer's ``step()`` is skipped, and so are the
calls of ``zero_grad()`` in between.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType, ModuleType
from typing import Any, Final

from vramscope.dry_run.changes.after_import import after_import
from vramscope.dry_run.changes.autocast import LIGHTNING
from vramscope.dry_run.changes.change import Call, Change
from vramscope.protocol.dry_run import ChangeOutcome

PARTS: Final = 2
"""Micro-batches of a step."""


class Accumulation(Change):
    """Halves the batches, and steps after two of them."""

    name = "accumulation"
    reason = "no DataLoader with an even batch size was made"

    def __init__(self) -> None:
        super().__init__()
        self._by_transformers = False
        self._by_lightning = False
        self._steps = _SkippedSteps(lambda: bool(self._changed) and not self._by_framework)

    @property
    def _by_framework(self) -> bool:
        return self._by_transformers or self._by_lightning

    def install(self) -> None:
        """Change the arguments of trainers, the data loaders, and the optimizers of plain loops."""
        after_import("transformers.training_args", self._change_transformers)
        after_import("torch.utils.data.dataloader", self._change_loaders)
        for name in LIGHTNING:
            after_import(name, self._change_lightning)
        self._change_optimizers()

    def begin(self) -> None:
        """Skip ``zero_grad()`` of modules, too."""
        from torch import nn

        def zero_grad(original: Any, *args: Any, **kwargs: Any) -> None:
            if not self._steps.are_between:
                original(*args, **kwargs)

        self.patches.wrap(nn.Module, "zero_grad", zero_grad)

    def outcome(self) -> ChangeOutcome:
        """Return whether gradients were accumulated."""
        if self._steps.dropped:
            self._changed.clear()
            self.reason = "the program drops its gradients in another way than by zero_grad()"
        elif self._changed and not self._by_framework and not self._steps.skipped:
            self._changed.clear()
            self.reason = "no optimizer of PyTorch stepped"
        elif self._changed and not self._by_framework:
            skipped = f"if (index + 1) % {PARTS} == 0:  # before optimizer.step() and optimizer.zero_grad()"
            self._lines += [line for line in (f"(loss / {PARTS}).backward()", skipped) if line not in self._lines]
        return super().outcome()

    def _change_transformers(self, module: ModuleType) -> None:
        def around(original: Any, arguments: Any) -> None:
            self._by_transformers = True
            size = arguments.per_device_train_batch_size
            if size % PARTS:
                self.reason = f"the batch size {size} is odd"
            else:
                arguments.per_device_train_batch_size = size // PARTS
                arguments.gradient_accumulation_steps = steps = arguments.gradient_accumulation_steps * PARTS
                settings = f"per_device_train_batch_size={size // PARTS}, gradient_accumulation_steps={steps}"
                self.applied("TrainingArguments", f"TrainingArguments({settings})")
            original(arguments)

        self.patches.wrap(module.TrainingArguments, "__post_init__", around)

    def _change_lightning(self, module: ModuleType) -> None:
        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            self._by_lightning = True
            kwargs["accumulate_grad_batches"] = steps = kwargs.get("accumulate_grad_batches", 1) * PARTS
            self._lines.append(f"Trainer(accumulate_grad_batches={steps})")
            return original(*args, **kwargs)

        self.patches.wrap(module.Trainer, "__init__", around)

    def _change_loaders(self, module: ModuleType) -> None:
        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            call = Call.of(original, args, kwargs)
            size = call["batch_size"]
            if not self._by_transformers and call["batch_sampler"] is None and size and size % PARTS == 0:
                call["batch_size"] = size // PARTS
                self.applied("DataLoader", f"DataLoader(..., batch_size={size // PARTS})")
            return call.to(original)

        self.patches.wrap(module.DataLoader, "__init__", around)

    def _change_optimizers(self) -> None:
        from torch.optim.optimizer import Optimizer

        def around(original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._steps.skip_in(optimizer)

        self.patches.wrap(Optimizer, "__init__", around)


class _SkippedSteps:
    """Steps of optimizers of which each second one is made."""

    def __init__(self, is_wanted: Callable[[], bool]) -> None:
        self._is_wanted = is_wanted
        self.skipped = False
        """True if a step was skipped."""
        self.dropped = False
        """True if gradients of a micro-batch were replaced, not added to."""
        self._gradients: weakref.WeakKeyDictionary[Any, list[weakref.ref[Any]]] = weakref.WeakKeyDictionary()
        """Gradients of the first micro-batch, of each optimizer that is between two."""

    @property
    def are_between(self) -> bool:
        """True between the micro-batches of a step."""
        return bool(self._gradients)

    def skip_in(self, optimizer: Any) -> None:
        """Skip each first of two steps of this optimizer."""
        optimizer.step = MethodType(_function(self._step), optimizer)
        optimizer.zero_grad = MethodType(_function(self._zero_grad), optimizer)

    def _step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        first = self._gradients.pop(optimizer, None)
        if first is None and self._is_wanted():
            self._gradients[optimizer] = _gradients(optimizer)
            self.skipped = True
            return None
        if first is not None:
            self.dropped |= any(one() is not now() for one, now in zip(first, _gradients(optimizer), strict=False))
        return type(optimizer).step(optimizer, *args, **kwargs)

    def _zero_grad(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        if optimizer not in self._gradients:
            type(optimizer).zero_grad(optimizer, *args, **kwargs)


def _function(method: Any) -> Any:
    """Return a function that calls the method: schedulers need one in an optimizer's bound method."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return call


def _gradients(optimizer: Any) -> list[weakref.ref[Any]]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [weakref.ref(parameter.grad) for parameter in parameters if parameter.grad is not None]
