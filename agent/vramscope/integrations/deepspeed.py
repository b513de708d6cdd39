"""DeepSpeed's engine: its configuration, and its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from vramscope.guard import guarded
from vramscope.integrations.connection import Connection
from vramscope.memory import deepspeed_zero
from vramscope.memory.deepspeed_zero import is_engine

if TYPE_CHECKING:
    import torch

    from vramscope.steps.hooks import LoopHooks


OFFLOADED: Final = ("optimizer", "param")
"""What ZeRO can offload, in DeepSpeed's own words."""


def connect(target: Any, hooks: LoopHooks) -> Connection | None:
    """Connects an engine; None for any other target."""
    if not is_engine(target):
        return None
    hooks.models.add(target)
    hooks.on_first_step = hooks.models.find_if_unheard
    return Connection("deepspeed", configuration(target))


def configuration(engine: Any) -> dict[str, Any]:
    """Returns the settings that affect memory."""
    switches = (("bf16", "bfloat16_enabled"), ("fp16", "fp16_enabled"))
    fields = {
        "deepspeed": f"zero stage {_asked(engine, 'zero_optimization_stage')}",
        "gradient_accumulation_steps": _asked(engine, "gradient_accumulation_steps"),
        "mixed_precision": next((short for short, name in switches if _asked(engine, name)), None),
        "cpu_offload": ", ".join(_offloads(engine)) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def of_zero(config: Any) -> dict[str, str]:
    """Returns ZeRO's settings from a DeepSpeed configuration that another framework keeps; empty if it has none."""
    zero_ = config.get("zero_optimization") if isinstance(config, dict) else None
    if not isinstance(zero_, dict):
        return {}
    asked = ((what, zero_.get(f"offload_{what}")) for what in OFFLOADED)
    devices = {what: section.get("device") for what, section in asked if isinstance(section, dict)}
    away = ", ".join(f"{what} to {device}" for what, device in devices.items() if device not in (None, "none"))
    return {"deepspeed": f"zero stage {zero_.get('stage')}", **({"cpu_offload": away} if away else {})}


def _offloads(engine: Any) -> Iterator[str]:
    for what in OFFLOADED:
        asked = _asked(engine, f"zero_offload_{what}")
        setting = getattr(asked, "device", None)
        device = str(getattr(setting, "value", setting) or "none")  # a member of an enumeration, or only its value
        if device != "none":
            yield f"{what} to {device}"


def _asked(engine: Any, name: str) -> Any:
    """Calls a method of the engine; None if it has none of that name."""
    method = getattr(engine, name, None)
    return method() if callable(method) else None


class EngineSteps:
    """Ends a training step when an engine's ``step`` returns, and not with each optimizer in it. For one session."""

    package = "deepspeed"

    def __init__(self, hooks: LoopHooks) -> None:
        self._hooks = hooks
        self._kinds: set[type] = set()
        """Engine classes whose ``step`` is wrapped."""
        self._in_step = False
        self._stepped: torch.optim.Optimizer | None = None
        """Optimizer that stepped within the running engine step. There may be several: ZeRO steps group by group."""

    def listen(self) -> None:
        """Find the engine whose backward pass is about to begin."""
        engine = deepspeed_zero.listen()
        if engine is not None:
            self._found(engine)

    def found_root(self, module: torch.nn.Module) -> None:
        """Wrap the step of a root module that is an engine."""
        if is_engine(module):
            self._found(module)

    def takes_step(self, optimizer: torch.optim.Optimizer) -> bool:
        """True within an engine's step: the step is reported when that returns."""
        if self._in_step:
            self._stepped = optimizer
        return self._in_step

    def _found(self, engine: Any) -> None:
        deepspeed_zero.ENGINES.add(engine)
        kind = type(engine)
        if kind in self._kinds:
            return
        self._kinds.add(kind)
        is_over = guarded("DeepSpeed's step")(self._over)

        def step(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            self._in_step = True
            try:
                return original(*args, **kwargs)
            finally:
                self._in_step = False
                is_over()

        self._hooks.patches.wrap(kind, "step", step)

    def _over(self) -> None:
        # No optimizer has stepped if fp16 overflowed: that ends nothing.
        optimizer, self._stepped = self._stepped, None
        if optimizer is not None:
            self._hooks.stepped(optimizer)
