"""Optimizers with 8-bit states, of bitsandbytes or torchao, in the place of PyTorch's own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from vramscope.dry_run.changes.after_import import after_import
from vramscope.dry_run.changes.change import Change
from vramscope.guard import guarded
from vramscope.protocol.dry_run import NO_EIGHT_BIT, ChangeOutcome

OPTIONS_OF_PYTORCH: Final = frozenset({"foreach", "fused", "capturable", "differentiable", "maximize", "amsgrad"})
"""Options that 8-bit optimizers do not have, or do not support."""
CHANGES_RESULT: Final = ("maximize", "amsgrad", "differentiable")
"""Options among these that change the training if they are dropped."""


@dataclass(frozen=True)
class Library:
    """A package with 8-bit optimizers."""

    name: str
    module: str
    classes: tuple[str, ...]
    """Names of the 32-bit classes that have an 8-bit counterpart, such as ``AdamW8bit``."""
    in_trainer: str
    """Value of the Trainer's argument ``optim``."""


LIBRARIES: Final = (
    Library("bitsandbytes", "bitsandbytes.optim", ("Adam", "AdamW", "SGD"), "adamw_bnb_8bit"),
    Library("torchao", "torchao.optim", ("Adam", "AdamW"), "adamw_torch_8bit"),
)
"""The packages, in the order of preference."""
IN_TRAINER: Final = ("adamw_torch", "adamw_torch_fused")
"""Optimizers of the Trainer that have an 8-bit counterpart."""


def installed_library() -> Library | None:
    """Return the preferred one of the packages that are installed."""
    return next((one for one in LIBRARIES if _is_installed(one.name)), None)


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # the program has put another module in its place, which has no file
        return False


class EightBitOptimizer(Change):
    """Creates an 8-bit optimizer where the program creates one of PyTorch."""

    name = "eight_bit_optimizer"
    reason = "no optimizer that has an 8-bit one was made"

    def __init__(self) -> None:
        super().__init__()
        self._library = installed_library()

    def install(self) -> None:
        """Replace optimizers when they are created, and change the arguments of the Trainer."""
        if self._library is None:
            return
        for name in self._library.classes:
            after_import(f"torch.optim.{name.lower()}", self._change_class)
        after_import("transformers.training_args", self._change_transformers)

    def outcome(self) -> ChangeOutcome:
        """Return whether an optimizer was replaced."""
        if self._library is None:
            self.reason = NO_EIGHT_BIT
        return super().outcome()

    def _change_class(self, module: ModuleType) -> None:
        name = next(one for one in LIBRARIES[0].classes if module.__name__ == f"torch.optim.{one.lower()}")
        kind = getattr(module, name)
        replacement = guarded("a change of the dry run", default=None)(self._replacement)

        def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            made = replacement(cls, args, kwargs) if cls is kind else None
            return object.__new__(cls) if made is None else made

        kind.__new__ = __new__

    def _replacement(self, kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return an 8-bit optimizer with the arguments of a 32-bit one; None where there is none."""
        assert self._library is not None
        given = inspect.signature(kind.__init__).bind(None, *args, **kwargs).arguments
        options = {name: value for name, value in given.items() if name != "self" and name not in OPTIONS_OF_PYTORCH}
        wrong = [name for name in CHANGES_RESULT if given.get(name)]
        if wrong:
            self.reason = f"{kind.__name__} has {wrong[0]}=True, which 8-bit optimizers do not support"
            return None
        if kind.__name__ == "SGD" and not options.get("momentum"):
            self.reason = "SGD without momentum has no states"
            return None
        if kind.__name__ == "SGD":
            options.setdefault("lr", 1e-3)
        eight_bit = getattr(importlib.import_module(self._library.module), f"{kind.__name__}8bit")
        made = eight_bit(**options)
        name = eight_bit.__name__
        self.applied(
            kind.__name__, f"from {self._library.module} import {name}", f"optimizer = {name}(model.parameters(), ...)"
        )
        return made

    def _change_transformers(self, module: ModuleType) -> None:
        assert self._library is not None
        chosen = self._library.in_trainer

        def around(original: Any, arguments: Any) -> None:
            if arguments.optim in IN_TRAINER:
                arguments.optim = chosen
                self.applied("TrainingArguments", f'TrainingArguments(optim="{chosen}")')
            else:
                self.reason = f"the Trainer uses {arguments.optim}"
            original(arguments)

        self.patches.wrap(module.TrainingArguments, "__post_init__", around)
