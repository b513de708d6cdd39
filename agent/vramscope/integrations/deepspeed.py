"""DeepSpeed's engine: the root, whose optimizer steps through the torch one that it wraps. What ZeRO does: ``zero``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.integrations import zero
from vramscope.integrations.connection import Connection
from vramscope.integrations.zero import is_engine

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hooks import LoopHooks


OFFLOADED: Final = ("optimizer", "param")
"""what ZeRO can keep elsewhere, in its own words"""


def connect(target: Any, hooks: LoopHooks) -> Connection | None:
    """None where the target is no engine."""
    if not is_engine(target):
        return None
    hooks.models.add(target)
    hooks.on_first_step = hooks.models.find_if_unheard
    return Connection("deepspeed", configuration(target))


def configuration(engine: Any) -> dict[str, Any]:
    """What it was told that bears on memory."""
    switches = (("bf16", "bfloat16_enabled"), ("fp16", "fp16_enabled"))
    told = {
        "deepspeed": f"zero stage {_asked(engine, 'zero_optimization_stage')}",
        "gradient_accumulation_steps": _asked(engine, "gradient_accumulation_steps"),
        "mixed_precision": next((short for short, name in switches if _asked(engine, name)), None),
        "cpu_offload": ", ".join(_offloads(engine)) or None,
    }
    return {name: value for name, value in told.items() if value is not None}


def of_zero(config: Any) -> dict[str, str]:
    """What DeepSpeed's configuration, as others keep it for an engine to come, says of ZeRO; nothing where it says nothing."""
    zero_ = config.get("zero_optimization") if isinstance(config, dict) else None
    if not isinstance(zero_, dict):
        return {}
    asked = ((what, zero_.get(f"offload_{what}")) for what in OFFLOADED)
    devices = {what: told.get("device") for what, told in asked if isinstance(told, dict)}
    away = ", ".join(f"{what} to {device}" for what, device in devices.items() if device not in (None, "none"))
    return {"deepspeed": f"zero stage {zero_.get('stage')}", **({"cpu_offload": away} if away else {})}


def _offloads(engine: Any) -> Iterator[str]:
    for what in OFFLOADED:
        asked = _asked(engine, f"zero_offload_{what}")
        told = getattr(asked, "device", None)
        device = str(getattr(told, "value", told) or "none")  # (an enumeration's member, or its value alone)
        if device != "none":
            yield f"{what} to {device}"


def _asked(engine: Any, name: str) -> Any:
    """What a method of the engine answers; None where it has none of that name."""
    method = getattr(engine, name, None)
    return method() if callable(method) else None


class EngineFront:
    """In front of the ``step`` of engines, for one session: a step is over when that is, and not with each optimizer in it."""

    def __init__(self, hooks: LoopHooks) -> None:
        self._hooks = hooks
        self._kinds: set[type] = set()
        """of engines, in front of whose ``step`` we are"""
        self.in_step = False
        """an engine's step runs: it is over when that is"""
        self.stepped: torch.optim.Optimizer | None = None
        """one whose step was over within it: maybe not the last, as ZeRO steps group by group"""

    def listen(self) -> None:
        """A backward is about to begin, which may be an engine's."""
        engine = zero.listen()
        if engine is not None:
            self.found(engine)

    def found(self, engine: Any) -> None:
        """This is one. Told again, nothing happens."""
        zero.ENGINES.add(engine)
        kind = type(engine)
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        is_over = guarded("DeepSpeed's step")(self._over)

        def step(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self.in_step = True
            try:
                return original(*args, **kwargs)
            finally:
                self.in_step = False
                is_over()

        self._hooks.fronts.put(kind, "step", step)

    def _over(self) -> None:
        # (No optimizer has stepped where fp16 overflowed: that ends nothing.)
        optimizer, self.stepped = self.stepped, None
        if optimizer is not None:
            self._hooks.stepped(optimizer)
