"""16-bit autocast: by the framework's own setting, else from the first forward pass of a step to its backward pass."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Final, Literal

from vramscope.dry_run.changes.after_import import after_import
from vramscope.dry_run.changes.change import Call, Change
from vramscope.dry_run.changes.trained_modules import before_each_forward, trained_roots
from vramscope.protocol.dry_run import ChangeName

LIGHTNING: Final = ("lightning.pytorch.trainer.trainer", "pytorch_lightning.trainer.trainer")
FULL_PRECISION: Final = (None, 32, "32", "32-true")


class Autocast(Change):
    """Autocast to one dtype."""

    reason = "no module with 32-bit parameters was trained on the GPU"

    def __init__(self, name: ChangeName, dtype: Literal["bf16", "fp16"]) -> None:
        super().__init__()
        self.name = name
        self._short = dtype
        self._by_framework = False
        self._context: Any = None

    def install(self) -> None:
        """Change the settings of Transformers, Lightning and Accelerate, and watch backward passes."""
        from torch import autograd

        for name in ("backward", "grad"):  # the agent replaces them for a while when it starts
            self.patches.watch(autograd, name, before=self._leave, pausable=False)
        after_import("transformers.training_args", self._change_transformers)
        after_import("accelerate.accelerator", self._change_accelerate)
        for name in LIGHTNING:
            after_import(name, self._change_lightning)

    def begin(self) -> None:
        """Watch forward passes."""
        before_each_forward(self._enter)

    def _change_transformers(self, module: ModuleType) -> None:
        def around(original: Any, arguments: Any) -> None:
            if not (arguments.bf16 or arguments.fp16):
                setattr(arguments, self._short, True)
                self._set_by_framework("TrainingArguments", f"TrainingArguments({self._short}=True)")
            original(arguments)

        self.patches.wrap(module.TrainingArguments, "__post_init__", around)

    def _change_accelerate(self, module: ModuleType) -> None:
        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            call = Call.of(original, args, kwargs)
            if call["mixed_precision"] is None and os.environ.get("ACCELERATE_MIXED_PRECISION", "no") == "no":
                call["mixed_precision"] = self._short
                self._set_by_framework("Accelerator", f'Accelerator(mixed_precision="{self._short}")')
            return call.to(original)

        self.patches.wrap(module.Accelerator, "__init__", around)

    def _change_lightning(self, module: ModuleType) -> None:
        def around(original: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("precision") in FULL_PRECISION:
                kwargs["precision"] = precision = "bf16-mixed" if self._short == "bf16" else "16-mixed"
                self._set_by_framework("Trainer", f'Trainer(precision="{precision}")')
            return original(*args, **kwargs)

        self.patches.wrap(module.Trainer, "__init__", around)

    def _set_by_framework(self, what: str, line: str) -> None:
        self._by_framework = True
        self.applied(what, line)

    def _enter(self) -> None:
        import torch

        if self._by_framework or self._context is not None:
            return
        if torch.is_autocast_enabled("cuda"):
            self.reason = "the program uses autocast"
            return
        if not self._changed and not self._has_wide_parameters():
            return
        name = "bfloat16" if self._short == "bf16" else "float16"
        self._context = torch.autocast("cuda", dtype=getattr(torch, name))
        self._context.__enter__()
        lines = [f'with torch.autocast("cuda", dtype=torch.{name}):  # around the forward pass and the loss']
        if self._short == "fp16":
            lines += ["scaler = torch.amp.GradScaler()", "scaler.scale(loss).backward()", "scaler.step(optimizer)"]
            lines += ["scaler.update()"]
        self.applied("forward pass and loss", *lines)

    def _leave(self, *_: Any, **__: Any) -> None:
        context, self._context = self._context, None
        if context is not None:
            context.__exit__(None, None, None)

    def _has_wide_parameters(self) -> bool:
        import torch

        roots = trained_roots()
        return any(parameter.dtype == torch.float32 for root in roots for parameter in root.parameters())
