"""Gradient checkpointing: enabled in the model or the framework, observed when modules run again in backward."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from vramscope.protocol import messages
from vramscope.techniques.checkpoint_regions import OTHER
from vramscope.techniques.observation import Detection, TrainingState, plural, setting_text, technique

KIND: Final = "gradient_checkpointing"
WRAPPERS: Final = re.compile(r"\.?\b(_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)\b")
"""Parts of a module's name that wrappers add."""
MAX_RANGES: Final = 4
"""Maximum number of ranges of modules that are named."""


def find(training: TrainingState) -> Detection | None:
    declared = declaration(training)
    observation = training.module_calls
    if observation is None:
        return Detection(technique(KIND, "checkpointing", declared, None)) if declared else None
    regions = observation.regions
    again = regions.recomputed(training.modules, observation.called)
    names, kinds, blocks = _blocks(training, again)
    functions = regions.functions
    # Some libraries run functions without gradients and again in their own backward (flex attention does).
    if not names and not functions and regions.variants_of(again) <= {OTHER}:
        if not declared:
            return None
        message = technique(KIND, "checkpointing", declared, "")
        return Detection(message, _not_observed(training, declared) if training.is_sure else None)
    variant = " and ".join(sorted(regions.variants_of(blocks or again) | set(functions.values())))
    parts = []
    if names:
        parts.append(_block_text(names, kinds))
    elif again:
        parts.append(f"{plural(len(again), 'module')} outside of the known models")
    if functions:
        parts.append(f"function{'s' * (len(functions) > 1)} {', '.join(sorted(functions))}")
    observed = f"recomputed in backward: {' and '.join(parts)}; variant: {variant}"
    count = len(names) or len(again) or None
    return Detection(technique(KIND, "checkpointing", declared, observed, blocks=count, variant=variant))


def declaration(training: TrainingState) -> str | None:
    """Setting that enables checkpointing, as the user wrote it."""
    name, value = training.setting("activation_checkpointing", "gradient_checkpointing")
    if name:
        return setting_text(name, value)
    # Transformers sets this on each module that supports checkpointing. The model's own property would warn.
    enabled = any(vars(module).get("gradient_checkpointing") for module in training.modules)
    return "gradient_checkpointing=True in the model" if enabled else None


def _blocks(training: TrainingState, again: set[int]) -> tuple[list[str], Counter[str], set[int]]:
    """Names, classes and identities of the outermost recomputed modules. Empty if no known model has them."""
    names: list[str] = []
    kinds: Counter[str] = Counter()
    blocks: set[int] = set()
    for root in training.roots:
        inside = ""
        for name, module in root.named_modules():
            if id(module) in again and not (inside and name.startswith(inside)):
                inside = f"{name}." if name else "."
                names.append(WRAPPERS.sub("", name).lstrip(".") or type(module).__name__)
                kinds[type(module).__name__] += 1
                blocks.add(id(module))
            if inside == ".":
                break  # the root itself
    return names, kinds, blocks


def _block_text(names: list[str], kinds: Counter[str]) -> str:
    """``3 Block (blocks.0 to blocks.2)``"""
    blocks = f"{len(names)} {next(iter(kinds))}" if len(kinds) == 1 else plural(len(names), "module")
    return f"{blocks} ({name_ranges(names)})"


def name_ranges(names: list[str]) -> str:
    """``blocks.0 to blocks.3``, or ``blocks.0, .2, .4`` if they are not consecutive."""
    runs: list[tuple[str, str]] = []
    for name in names:
        if runs and _follows(runs[-1][1], name):
            runs[-1] = (runs[-1][0], name)
        else:
            runs.append((name, name))
    if len(runs) == 1:
        return " to ".join(dict.fromkeys(runs[0]))
    texts, before = [], ""
    for first, last in runs if len(runs) <= MAX_RANGES else (*runs[: MAX_RANGES - 1], runs[-1]):
        texts.append(_after(before, first) + (f" to {_after(first, last)}" if last != first else ""))
        before = last
    return ", ".join(texts[:-1]) + (", " if len(runs) <= MAX_RANGES else " .. ") + texts[-1]


def _follows(before: str, name: str) -> bool:
    """Whether a name is the next one: one number is larger by one and all else is equal."""
    one, other = before.split("."), name.split(".")
    if len(one) != len(other):
        return False
    different = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    return (
        len(different) == 1
        and all(map(str.isdecimal, different[0]))
        and int(different[0][1]) == int(different[0][0]) + 1
    )


def _after(before: str, name: str) -> str:
    """A name without the prefix that it shares with the one before."""
    parent, _, own = name.rpartition(".")
    return f".{own}" if parent and parent == before.rpartition(".")[0] else name


def _not_observed(training: TrainingState, declared: str) -> messages.Pitfall:
    observation = training.module_calls
    assert observation is not None
    if observation.calls_in_eval_mode > observation.calls // 2:
        why = "the model is in eval mode, and its blocks checkpoint in training mode only"
        advice = "call model.train() before the loop, and again after each evaluation"
    elif observation.regions.inside or observation.regions.without_gradients:
        why = "modules ran in a checkpoint, but none of its inputs needed a gradient"
        advice = "call model.enable_input_require_grads(), or use_reentrant=False"
    else:
        why = "no module ran in a checkpoint, so this model does not support it"
        advice = "wrap the blocks: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
    text = f"{declared}, but nothing was recomputed in {training.observed} observed steps: {why}. No memory is saved."
    return training.finding("checkpointing-not-seen", text, advice)
