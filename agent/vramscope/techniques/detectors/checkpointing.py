"""Gradient checkpointing: switched on in the model or the framework, and seen when modules run again in backward."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from vramscope.protocol import messages
from vramscope.techniques.checkpoint_regions import OTHER
from vramscope.techniques.observation import Facts, Found, said, some, technique

KIND: Final = "gradient_checkpointing"
WRAPPERS: Final = re.compile(r"\.?\b(_checkpoint_wrapped_module|_fsdp_wrapped_module|_orig_mod)\b")
"""parts of a module's name that its wrappers add"""

MOST_PLACES: Final = 4
"""that are named, where they are not one after the other"""


def find(facts: Facts) -> Found | None:
    declared = declaration(facts)
    heard = facts.heard
    if heard is None:
        return Found(technique(KIND, "checkpointing", declared, None)) if declared else None
    regions = heard.regions
    again = regions.recomputed(facts.modules, heard.called)
    names, kinds, blocks = _blocks(facts, again)
    functions = regions.functions
    # What some library runs without gradients and again in its own backward (flex attention does) is no part of the model.
    if not names and not functions and regions.variants_of(again) <= {OTHER}:
        if not declared:
            return None
        told = technique(KIND, "checkpointing", declared, "")
        return Found(told, _not_seen(facts, declared) if facts.is_sure else None)
    variant = " and ".join(sorted(regions.variants_of(blocks or again) | set(functions.values())))
    parts = [_words(names, kinds)] if names else [f"{some(len(again), 'module')} of no known model"] if again else []
    if functions:
        parts.append(f"the function{'s' * (len(functions) > 1)} {', '.join(sorted(functions))}")
    observed = f"{' and '.join(parts)} ran again in backward; variant: {variant}"
    count = len(names) or len(again) or None
    return Found(technique(KIND, "checkpointing", declared, observed, blocks=count, variant=variant))


def declaration(facts: Facts) -> str | None:
    """What says that it is switched on, in its own words."""
    name, value = facts.setting("activation_checkpointing", "gradient_checkpointing")
    if name:
        return said(name, value)
    # Transformers sets this on each module that can checkpoint itself; the model's own property would warn.
    able = any(vars(module).get("gradient_checkpointing") for module in facts.modules)
    return "gradient_checkpointing=True in the model" if able else None


def _blocks(facts: Facts, again: set[int]) -> tuple[list[str], Counter[str], set[int]]:
    """Names, classes and identities of the outermost modules that ran again; none where no known model has them."""
    names: list[str] = []
    kinds: Counter[str] = Counter()
    blocks: set[int] = set()
    for root in facts.roots:
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


def _words(names: list[str], kinds: Counter[str]) -> str:
    """``3 Block (blocks.0 to blocks.2)``"""
    blocks = f"{len(names)} {next(iter(kinds))}" if len(kinds) == 1 else some(len(names), "module")
    return f"{blocks} ({places(names)})"


def places(names: list[str]) -> str:
    """``blocks.0 to blocks.3``; ``blocks.0, .2, .4`` where others lie between them."""
    runs: list[tuple[str, str]] = []
    for name in names:
        if runs and _follows(runs[-1][1], name):
            runs[-1] = (runs[-1][0], name)
        else:
            runs.append((name, name))
    if len(runs) == 1:
        return " to ".join(dict.fromkeys(runs[0]))
    words, before = [], ""
    for first, last in runs if len(runs) <= MOST_PLACES else (*runs[: MOST_PLACES - 1], runs[-1]):
        words.append(_after(before, first) + (f" to {_after(first, last)}" if last != first else ""))
        before = last
    return ", ".join(words[:-1]) + (", " if len(runs) <= MOST_PLACES else " .. ") + words[-1]


def _follows(before: str, name: str) -> bool:
    """Whether two names differ in one number, by one."""
    one, other = before.split("."), name.split(".")
    if len(one) != len(other):
        return False
    apart = [pair for pair in zip(one, other, strict=True) if pair[0] != pair[1]]
    return len(apart) == 1 and all(map(str.isdecimal, apart[0])) and int(apart[0][1]) == int(apart[0][0]) + 1


def _after(before: str, name: str) -> str:
    """A name without what the one before it has said."""
    parent, _, own = name.rpartition(".")
    return f".{own}" if parent and parent == before.rpartition(".")[0] else name


def _not_seen(facts: Facts, declared: str) -> messages.Finding:
    heard = facts.heard
    assert heard is not None
    if heard.calls_in_eval_mode > heard.calls // 2:
        why = "the model is in eval mode, in which its blocks do not checkpoint themselves"
        advice = "call model.train() before the loop, and again after each evaluation"
    elif heard.regions.inside or heard.regions.without_gradients:
        why = "modules were called in a checkpoint, but nothing in it needed a gradient"
        advice = "call model.enable_input_require_grads(), or use_reentrant=False"
    else:
        why = "no module ran in a checkpoint: no block of this model checkpoints itself"
        advice = "wrap the blocks: torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
    text = f"{declared}, and no recomputation was seen in {facts.observed} observed steps: {why}. It saves nothing."
    return facts.finding("checkpointing-not-seen", text, advice)
