"""Several processes on one training: DDP, FSDP, ZeRO and their stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramscope.integrations.deepspeed import of_zero
from vramscope.protocol import messages
from vramscope.techniques.observation import Facts, Found, all_ranks, said, technique

KIND: Final = "distributed"
AWAITED: Final[Mapping[str, tuple[str, ...]]] = {
    "deepspeed": ("ZeRO", "DeepSpeed"),
    "fsdp": ("FSDP", "DTensor"),
    "ddp": ("DDP",),
    "multi": ("DDP", "FSDP", "DTensor"),
}
"""how a word for what was declared begins -> how what is seen of it may; nothing is known of others (Megatron's, XLA's)"""


class _Declared(NamedTuple):
    text: str
    """as the framework was told"""
    chip: str
    """the shortest word for it"""
    awaited: tuple[str, ...]


def find(facts: Facts) -> Found | None:
    declared = _declared(facts)
    ranks = all_ranks()
    seen, sharding = _seen(facts)
    if not seen and declared is None:
        return None
    finding = _missed(facts, declared, seen, ranks) if declared is not None and facts.is_sure else None
    text = None if declared is None else declared.text
    if not seen:
        assert declared is not None
        sought = facts.heard is not None and declared.awaited
        return Found(technique(KIND, declared.chip, text, "" if sought else None), finding)
    chip = seen + (f" x {ranks}" if ranks > 1 else "")
    observed = f"{seen}{f' ({sharding})' if sharding else ''}" + (f" over {ranks} ranks" if ranks > 1 else ", one rank")
    return Found(technique(KIND, chip, text, observed, ranks=ranks, sharding=sharding or None), finding)


def _missed(facts: Facts, declared: _Declared, seen: str, ranks: int) -> messages.Finding | None:
    """What is called in the step is something else than what was declared, or nothing of the kind."""
    if facts.heard is None or not declared.awaited or seen.startswith(declared.awaited):
        return None
    if "DDP" in declared.awaited and ranks == 1:
        return None  # (Accelerate puts no DDP around a model that trains alone)
    if seen:
        what = f"what is called in the step is {seen}"
    elif "DDP" in declared.awaited:
        what = "no DDP is around the model that is called: each process trains one of its own, their gradients are not averaged"
    else:
        what = (
            "the model that is called is not divided: every process holds all of its parameters, gradients and states"
        )
    return facts.finding(
        "distributed-not-seen",
        f"{declared.text}, and in {facts.observed} observed steps {what}.",
        "call what the framework has prepared (what accelerator.prepare gave back, say), and not the model itself",
    )


def _declared(facts: Facts) -> _Declared | None:
    name, value = facts.setting("deepspeed", "fsdp")
    if name:
        told = of_zero(value).get("deepspeed", True) if not isinstance(value, str) else value  # (a whole configuration)
        return _Declared(said(name, told), name, AWAITED[name])
    kind = str(facts.config.get("distributed_type", "NO"))
    strategy = str(facts.config.get("strategy", ""))
    if kind.upper() != "NO" and (all_ranks() > 1 or not kind.upper().startswith("MULTI")):
        text, word = said("distributed_type", kind), kind
    elif strategy and not strategy.startswith(("SingleDevice", "NoneType")):
        text, word = said("strategy", strategy), strategy.removesuffix("Strategy")
    else:
        return None
    awaited = next((seen for begins, seen in AWAITED.items() if word.lower().startswith(begins)), ())
    return _Declared(text, "DDP" if "DDP" in awaited else word, awaited)


def _seen(facts: Facts) -> tuple[str, str]:
    """What the modules are, outermost first, and how the parameters are divided."""
    found = ""
    sharding = ""
    heard = [] if facts.sight is None else [module for ref in facts.sight.wrappers if (module := ref()) is not None]
    for module in (*heard, *facts.modules):
        names = {kind.__name__ for kind in type(module).__mro__}
        stage = _zero_stage(module) if "DeepSpeedEngine" in names else None
        if stage is not None:
            return f"ZeRO-{stage}" if stage else "DeepSpeed", ""
        if "FullyShardedDataParallel" in names:
            strategy = getattr(getattr(module, "sharding_strategy", None), "name", "")
            return "FSDP", strategy.lower()
        if "FSDPModule" in names:
            found = "FSDP2"
        elif not found and "DistributedDataParallel" in names:
            found = "DDP"
            if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in facts.optimizers):
                found = "DDP + ZeRO-1"  # PyTorch's own: each rank keeps a part of the states
            if getattr(module, "gradient_as_bucket_view", False):
                sharding = "gradients are views of the buckets"
        elif not found and "DataParallel" in names:
            found = "DataParallel"
    if found in ("", "FSDP2"):
        divided = {", ".join(map(str, p.placements)) for p in facts.parameters if hasattr(p, "placements")}
        if divided:
            return found or "DTensor", "; ".join(sorted(divided))[:200]
    return found, sharding


def _zero_stage(engine: Any) -> int | None:
    stage = getattr(engine, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else None
