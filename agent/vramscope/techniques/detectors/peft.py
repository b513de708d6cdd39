"""Parameter-efficient fine-tuning: adapters of the library peft, or a mostly frozen model."""

from __future__ import annotations

from typing import Any, Final

from vramscope.techniques.detectors.quantization import numbers_in
from vramscope.techniques.observation import Detection, TrainingState, technique

KIND: Final = "peft"
MAX_TRAINED: Final = 0.5
"""Maximum trained share of the parameters. Above it, this is an ordinary training with some frozen layers."""


def find(training: TrainingState) -> Detection | None:
    """Count the parameters of models with a trained parameter, without branches that run without gradients only."""
    adapters = [(module, config) for module in training.modules if (config := _config(module)) is not None]
    declared = None
    kind = "trained"
    if adapters:
        config = adapters[0][1]
        kind = _kind(config)
        declared = f"peft: {kind}{_rank(config)}"
    trained = total = 0
    with_state = {id(parameter) for parameter, _ in training.optimizer_states}
    teachers = set() if adapters else _teacher_parameters(training)
    seen: set[int] = set()
    for root in [module for module, _ in adapters] or training.roots:
        own = [p for p in root.parameters() if id(p) not in seen | teachers]
        seen.update(map(id, own))
        # Two networks that take turns freeze each other. A parameter with optimizer state is trained.
        learning = [p for p in own if p.requires_grad or id(p) in with_state]
        if learning:  # a fully frozen teacher or critic does not count
            trained += sum(map(numbers_in, learning))
            total += sum(map(numbers_in, own))
    share = trained / total if total else 1.0
    if not adapters and share > MAX_TRAINED:
        return None
    if not trained:
        return None
    percent = f"{100 * share:.2g} %"
    observed = f"{trained:,} of {total:,} parameters are trained ({percent})"
    return Detection(technique(KIND, f"{kind} {percent}", declared, observed, trained_fraction=share, trained=trained))


def _kind(config: Any) -> str:
    """Name of the method, from its configuration class: ``LoraConfig``, ``PrefixTuningConfig``."""
    name = type(config).__name__.removesuffix("Config")
    if getattr(config, "use_dora", False):
        return "DoRA"
    return name.replace("Lora", "LoRA").replace("Vera", "VeRA")


def _rank(config: Any) -> str:
    """Rank as text. AdaLoRA has a first and a last rank, and inherits another one that does not count."""
    first, last = getattr(config, "init_r", None), getattr(config, "target_r", None)
    if first and last:
        return f", r={first} to {last}"
    rank = getattr(config, "r", None)
    return f", r={rank}" if rank else ""


def _teacher_parameters(training: TrainingState) -> set[int]:
    """Frozen parameters of modules that ran without gradients only: a teacher within the model that learns from it."""
    if training.module_calls is None:
        return set()
    regions = training.module_calls.regions
    teachers = regions.without_gradients - set(regions.again)
    return {
        id(p)
        for module in training.modules
        if id(module) in teachers
        for p in module.parameters()
        if not p.requires_grad
    }


def _config(module: Any) -> Any:
    """Configuration of the first adapter of a model; None if it has none.

    Adapters are added by peft's own model class, or in place by transformers, diffusers or ``peft.inject_adapter_in_model``.
    """
    configs = vars(module).get("peft_config")
    if configs is None and any(kind.__name__ in ("PeftModel", "PeftMixedModel") for kind in type(module).__mro__):
        configs = getattr(module, "peft_config", None)
    first = next(iter(configs.values()), None) if isinstance(configs, dict) else None
    return first if hasattr(first, "peft_type") else None
