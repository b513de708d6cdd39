"""What the kinds of techniques judge by: what was declared, the models and optimizers, and the step that was observed."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.protocol import messages

if TYPE_CHECKING:
    import torch

    from vramscope.techniques.observer import Sight

NARROW_BITS: Final = 8
"""of a number, at most: of an optimizer's state, or of a weight, that is called quantized"""


class Found(NamedTuple):
    """A technique, and what is wrong with it: declared and not observed, say."""

    technique: messages.Technique
    finding: messages.Finding | None = None


@dataclasses.dataclass(frozen=True)
class Facts:
    """Held for one summary only: nothing of it outlives the call.

    framework   loop | huggingface | lightning | accelerate
    config      the framework's own settings, as the user gave them
    roots       the models that are trained, outermost modules
    alive       these, and every other model that is known: teachers, and what an earlier training left behind
    optimizers  those that have stepped, the one that leads the steps first
    sight       the newest observed step; None before the first
    observed    how many steps were observed
    emptied     in how many of them the cache was emptied
    """

    framework: str
    config: Mapping[str, Any]
    roots: Sequence[torch.nn.Module]
    alive: Sequence[torch.nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    sight: Sight | None
    observed: int
    emptied: int
    step: int

    @property
    def heard(self) -> Sight | None:
        """The observed step, where its module calls could be heard."""
        return self.sight if self.sight is not None and not self.sight.blind and self.sight.calls else None

    @property
    def counted(self) -> Sight | None:
        """The same, or one where only whole models could be heard, around compiled parts: what they were given, and how often."""
        return self.sight if self.sight is not None and self.sight.micro_steps is not None else None

    @property
    def is_sure(self) -> bool:
        """What is declared and was not seen may be told as a finding: not in the first observed step, which may be a warm-up."""
        return self.observed >= 2

    @functools.cached_property
    def modules(self) -> list[torch.nn.Module]:
        """Every module of the models, each once."""
        return list({id(module): module for root in self.roots for module in root.modules()}.values())

    @functools.cached_property
    def parameters(self) -> list[torch.nn.Parameter]:
        """Every parameter of the models, each once."""
        own = (
            parameter for module in self.modules for parameter in module._parameters.values() if parameter is not None
        )
        return list({id(parameter): parameter for parameter in own}.values())

    @functools.cached_property
    def states(self) -> list[tuple[torch.Tensor, list[torch.Tensor]]]:
        """Each parameter that an optimizer keeps state for, and the tensors of that state."""
        import torch

        return [
            (parameter, [value for value in state.values() if isinstance(value, torch.Tensor)])
            for optimizer in self.optimizers
            for parameter, state in list(optimizer.state.items())
            if isinstance(state, dict) and isinstance(parameter, torch.Tensor)
        ]

    def setting(self, *names: str) -> tuple[str, Any]:
        """Name and value of the first of these settings that is there and not False, "no" or 0; ("", None) where none is."""
        for name in names:
            value = self.config.get(name)
            if value not in (None, False, "", "no", 0, {}, []):
                return name, value
        return "", None

    def finding(
        self, kind: str, text: str, advice: str, place: tuple[str, int] | tuple[str, int, str] | None = None
    ) -> messages.Finding:
        """A finding of this step; ``place``: file and line."""
        file, line = (place[0], place[1]) if place is not None else (None, None)
        return messages.Finding(
            kind=kind, text=text[:4096], advice=advice, file=file, line=line or None, first_step=self.step
        )


def all_ranks() -> int:
    """Processes of this training."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())


def technique(
    kind: str, chip: str, declared: str | None, observed: str | None, **detail: messages.Scalar
) -> messages.Technique:
    """A technique's message; figures that are None are left out."""
    return messages.Technique(
        kind=kind,
        chip=chip[:200],
        declared=declared,
        observed=observed,
        detail={name: value for name, value in detail.items() if value is not None},
    )


def said(name: str, value: Any) -> str:
    """A setting as its user wrote it: ``bf16=True``."""
    return f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}"


def some(count: int, noun: str) -> str:
    """``1 call``, ``12 calls``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
