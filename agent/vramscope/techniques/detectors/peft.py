"""Parameter-efficient fine-tuning: adapters by the library peft, or a model most of which is frozen."""

from __future__ import annotations

from typing import Any, Final

from vramscope.techniques.detectors.quantization import numbers_in
from vramscope.techniques.observation import Facts, Found, technique

KIND: Final = "peft"
MOST_TRAINED: Final = 0.5
"""of a model's parameters: where more is trained, it is an ordinary training with some frozen layers"""


def find(facts: Facts) -> Found | None:
    """Counted are the parameters of the models that have one which is trained, less the branches that only look on."""
    adapters = [(module, config) for module in facts.modules if (config := _config(module)) is not None]
    declared = None
    kind = "trained"
    if adapters:
        config = adapters[0][1]
        kind = _kind(config)
        declared = f"peft: {kind}{_rank(config)}"
    trained = total = 0
    with_state = {id(parameter) for parameter, _ in facts.states}
    onlookers = set() if adapters else _onlookers(facts)
    seen: set[int] = set()
    for root in [module for module, _ in adapters] or facts.roots:
        own = [p for p in root.parameters() if id(p) not in seen | onlookers]
        seen.update(map(id, own))
        # Two networks that take turns switch each other's requires_grad off: what has state is trained all the same.
        learning = [p for p in own if p.requires_grad or id(p) in with_state]
        if learning:  # a teacher or a critic that is frozen as a whole is none of it
            trained += sum(map(numbers_in, learning))
            total += sum(map(numbers_in, own))
    share = trained / total if total else 1.0
    if not adapters and share > MOST_TRAINED:
        return None
    if not trained:
        return None
    percent = f"{100 * share:.2g} %"
    observed = f"{trained:,} of {total:,} parameters are trained ({percent})"
    return Found(technique(KIND, f"{kind} {percent}", declared, observed, trained_fraction=share, trained=trained))


def _kind(config: Any) -> str:
    """As its authors write it, by the name of its configuration: ``LoraConfig``, ``PrefixTuningConfig``."""
    name = type(config).__name__.removesuffix("Config")
    if getattr(config, "use_dora", False):
        return "DoRA"
    return name.replace("Lora", "LoRA").replace("Vera", "VeRA")


def _rank(config: Any) -> str:
    """AdaLoRA begins with one rank and comes down to another, and inherits a third."""
    first, last = getattr(config, "init_r", None), getattr(config, "target_r", None)
    if first and last:
        return f", r={first} to {last}"
    rank = getattr(config, "r", None)
    return f", r={rank}" if rank else ""


def _onlookers(facts: Facts) -> set[int]:
    """Frozen parameters of modules that ran without gradients only: a teacher's, within the model that learns from it."""
    if facts.heard is None:
        return set()
    regions = facts.heard.regions
    alone = regions.without_gradients - set(regions.again)
    return {
        id(p) for module in facts.modules if id(module) in alone for p in module.parameters() if not p.requires_grad
    }


def _config(module: Any) -> Any:
    """The first adapter's configuration of a model that peft has put adapters into; else None.

    By peft's own class, or in place: by transformers, diffusers, or whoever calls ``peft.inject_adapter_in_model`` by hand.
    """
    configs = vars(module).get("peft_config")
    if configs is None and any(kind.__name__ in ("PeftModel", "PeftMixedModel") for kind in type(module).__mro__):
        configs = getattr(module, "peft_config", None)
    first = next(iter(configs.values()), None) if isinstance(configs, dict) else None
    return first if hasattr(first, "peft_type") else None
