"""Changes how PyTorch's optimizers update parameters: in one fused kernel, or one tensor after the other."""

from __future__ import annotations

import inspect
from typing import Any, Literal

from vramscope.dry_run.changes.change import Call, Change
from vramscope.guard import guarded


class OptimizerLoop(Change):
    """Sets ``fused=True`` or ``foreach=False`` in each optimizer that has the option."""

    def __init__(self, option: Literal["fused", "foreach"]) -> None:
        super().__init__()
        self.name = "fused_optimizer" if option == "fused" else "single_tensor_optimizer"
        self._option = option
        self._depth = 0
        self.reason = f"no optimizer with the option {option} was made"

    def install(self) -> None:
        """Wrap the constructor of each class of optimizers when the class is made."""
        from torch.optim.optimizer import Optimizer

        around = self._around
        wrap = guarded("a change of the dry run")(self._wrap)

        @classmethod  # type: ignore[misc]
        def init_subclass(cls: Any, **options: Any) -> None:
            super(Optimizer, cls).__init_subclass__(**options)
            wrap(cls, around)

        Optimizer.__init_subclass__ = init_subclass

    def _wrap(self, kind: type, around: Any) -> None:
        if "__init__" in vars(kind) and self._option in inspect.signature(kind.__init__).parameters:  # type: ignore[misc]
            self.patches.wrap(kind, "__init__", around)

    def _around(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if self._depth:  # AdamW calls Adam
            return original(*args, **kwargs)
        self._depth += 1
        try:
            return self._changed_call(Call.of(original, args, kwargs)).to(original)
        finally:
            self._depth -= 1

    def _changed_call(self, call: Call) -> Call:
        name = type(call["self"]).__name__
        if call["fused"]:
            self.reason = f"{name} is fused"
        elif self._option == "fused":
            call["fused"], call["foreach"] = True, None
            self.applied(name, f"torch.optim.{name}(..., fused=True)")
        elif call["foreach"] is False:
            self.reason = f"{name} has foreach=False"
        else:
            call["foreach"] = False
            self.applied(name, f"torch.optim.{name}(..., foreach=False)")
        return call
