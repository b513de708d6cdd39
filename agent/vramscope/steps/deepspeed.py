"""DeepSpeed's engine: the root, whose optimizer steps through the torch one that it wraps. What ZeRO does: ``zero``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vramscope.steps.loop import Connection, LoopHooks
from vramscope.steps.zero import is_engine


def connect(target: Any, hooks: LoopHooks) -> Connection | None:
    """None where the target is no engine."""
    if not is_engine(target):
        return None
    hooks.add_root(target)
    hooks.on_first_step = hooks.find_roots_if_unheard
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


def _offloads(engine: Any) -> Iterator[str]:
    for what in ("optimizer", "param"):
        asked = _asked(engine, f"zero_offload_{what}")
        device = str(getattr(getattr(asked, "device", None), "value", None) or "none")
        if device != "none":
            yield f"{what} to {device}"


def _asked(engine: Any, name: str) -> Any:
    """What a method of the engine answers; None where it has none of that name."""
    method = getattr(engine, name, None)
    return method() if callable(method) else None
