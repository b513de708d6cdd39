"""Training on several processes: DDP, FSDP, ZeRO and its stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from vramscope.integrations.deepspeed import of_zero
from vramscope.protocol import messages
from vramscope.techniques.observation import Detection, TrainingState, setting_text, technique, world_size

KIND: Final = "distributed"
EXPECTED: Final[Mapping[str, tuple[str, ...]]] = {
    "deepspeed": ("ZeRO", "DeepSpeed"),
    "fsdp": ("FSDP", "DTensor"),
    "ddp": ("DDP",),
    "multi": ("DDP", "FSDP", "DTensor"),
}
"""Prefix of the declared name -> possible prefixes of the observed name. Others (Megatron, XLA) are unknown."""


class _Declared(NamedTuple):
    text: str
    """The setting, as the user wrote it."""
    chip: str
    """Short name."""
    expected: tuple[str, ...]


def find(training: TrainingState) -> Detection | None:
    declared = _declared(training)
    ranks = world_size()
    observed_name, sharding = _observed(training)
    if not observed_name and declared is None:
        return None
    finding = _mismatch(training, declared, observed_name, ranks) if declared is not None and training.is_sure else None
    text = None if declared is None else declared.text
    if not observed_name:
        assert declared is not None
        is_detectable = training.module_calls is not None and declared.expected
        return Detection(technique(KIND, declared.chip, text, "" if is_detectable else None), finding)
    chip = observed_name + (f" x {ranks}" if ranks > 1 else "")
    observed = f"{observed_name}{f' ({sharding})' if sharding else ''}" + (
        f" over {ranks} ranks" if ranks > 1 else ", one rank"
    )
    return Detection(technique(KIND, chip, text, observed, ranks=ranks, sharding=sharding or None), finding)


def _mismatch(training: TrainingState, declared: _Declared, observed_name: str, ranks: int) -> messages.Pitfall | None:
    """Pitfall if the called model is not distributed as declared."""
    if training.module_calls is None or not declared.expected or observed_name.startswith(declared.expected):
        return None
    if "DDP" in declared.expected and ranks == 1:
        return None  # Accelerate does not wrap a model with DDP on a single process
    if observed_name:
        problem = f"the called model is {observed_name}"
    elif "DDP" in declared.expected:
        problem = "the called model has no DDP wrapper. Each process trains its own model; gradients are not averaged"
    else:
        problem = "the called model is not sharded. Every process has all parameters, gradients and optimizer state"
    return training.finding(
        "distributed-not-seen",
        f"{declared.text}, but in {training.observed} observed steps {problem}.",
        "call the model that the framework prepared (returned by accelerator.prepare, for example), not the original model",
    )


def _declared(training: TrainingState) -> _Declared | None:
    name, value = training.setting("deepspeed", "fsdp")
    if name:
        stated = (
            of_zero(value).get("deepspeed", True) if not isinstance(value, str) else value
        )  # the dictionary may be a whole configuration
        return _Declared(setting_text(name, stated), name, EXPECTED[name])
    kind = str(training.config.get("distributed_type", "NO"))
    strategy = str(training.config.get("strategy", ""))
    if kind.upper() != "NO" and (world_size() > 1 or not kind.upper().startswith("MULTI")):
        text, method = setting_text("distributed_type", kind), kind
    elif strategy and not strategy.startswith(("SingleDevice", "NoneType")):
        text, method = setting_text("strategy", strategy), strategy.removesuffix("Strategy")
    else:
        return None
    expected = next((names for prefix, names in EXPECTED.items() if method.lower().startswith(prefix)), ())
    return _Declared(text, "DDP" if "DDP" in expected else method, expected)


def _observed(training: TrainingState) -> tuple[str, str]:
    """Kind of the outermost distributed module, and the sharding of the parameters."""
    found = ""
    sharding = ""
    references = [] if training.observation is None else training.observation.wrappers
    wrappers = [module for reference in references if (module := reference()) is not None]
    for module in (*wrappers, *training.modules):
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
            if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in training.optimizers):
                found = "DDP + ZeRO-1"  # PyTorch's own: each rank keeps a part of the optimizer state
            if getattr(module, "gradient_as_bucket_view", False):
                sharding = "gradients are views of the buckets"
        elif not found and "DataParallel" in names:
            found = "DataParallel"
    if found in ("", "FSDP2"):
        placements = {", ".join(map(str, p.placements)) for p in training.parameters if hasattr(p, "placements")}
        if placements:
            return found or "DTensor", "; ".join(sorted(placements))[:200]
    return found, sharding


def _zero_stage(engine: Any) -> int | None:
    stage = getattr(engine, "zero_optimization_stage", None)
    return int(stage()) if callable(stage) else None
