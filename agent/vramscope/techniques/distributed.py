"""Several processes on one training: DDP, FSDP, ZeRO and their stage."""

from __future__ import annotations

import sys
from typing import Any, Final

from vramscope.techniques.facts import Facts, Found, said, technique

KIND: Final = "distributed"


def find(facts: Facts) -> Found | None:
    declared = _declared(facts)
    ranks = _ranks()
    seen, sharding = _seen(facts)
    if not seen:
        return (
            Found(technique(KIND, declared[1], declared[0], "" if facts.roots and facts.observed else None))
            if declared
            else None
        )
    chip = seen + (f" x {ranks}" if ranks > 1 else "")
    observed = f"{seen}{f' ({sharding})' if sharding else ''}" + (f" over {ranks} ranks" if ranks > 1 else ", one rank")
    return Found(
        technique(KIND, chip, declared[0] if declared else None, observed, ranks=ranks, sharding=sharding or None)
    )


def _declared(facts: Facts) -> tuple[str, str] | None:
    """What the framework was told, and the shortest word for it."""
    name, value = facts.setting("deepspeed", "fsdp")
    if name:
        return said(name, value if isinstance(value, str) else True), name
    kind = str(facts.config.get("distributed_type", "NO"))
    if kind.upper() not in ("NO", "MULTI_GPU", "MULTI_CPU"):
        return said("distributed_type", kind), kind
    strategy = str(facts.config.get("strategy", ""))
    if strategy and not strategy.startswith(("SingleDevice", "NoneType")):
        return said("strategy", strategy), strategy.removesuffix("Strategy")
    return None


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


def _ranks() -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1
    return int(distributed.get_world_size())
