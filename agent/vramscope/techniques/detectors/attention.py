"""Which implementation of attention runs: asked for in the model's configuration, seen by the names of the graph's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vramscope.techniques.observation import Facts, Found, some, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "attention"
NODES: Final = (
    ("ScaledDotProductFlashAttention", "flash"),
    ("ScaledDotProductEfficientAttention", "memory-efficient"),
    ("ScaledDotProductCudnnAttention", "cuDNN"),
    ("ScaledDotProductFusedAttentionOverrideable", "fused"),
    ("FlashAttn", "flash-attn"),
    ("_fMHA", "xFormers"),
    ("FlexAttention", "flex"),
)
"""how a node's name begins or what is in it, and what that is called"""
HIDES: Final = ("CheckpointFunction", "CompiledFunction")
"""nodes that stand for a part of the graph that is not there: its attention cannot be seen"""
EAGER: Final = "softmax over whole score matrices; no fused kernel"
FUSED_NAMES: Final = ("sdpa", "flash", "flex")
KNOWN: Final = ("eager", "sdpa", "flex")
"""what is asked for and shows in the graph by names that are known: where none is there, no attention ran"""


def find(facts: Facts) -> Found | None:
    asked = _asked(facts.roots)
    declared = None if asked is None else f"attn_implementation={asked!r}"
    nodes: Counter[str] = facts.sight.nodes if facts.sight is not None else Counter()
    if not nodes:
        return Found(technique(KIND, f"attention {asked}", declared, None)) if asked else None
    seen: Counter[str] = Counter()
    for name, count in nodes.items():
        for word, kind in NODES:
            if word in name:
                seen[kind] += count
                break
    if seen:
        kind, count = seen.most_common(1)[0]
        others = "".join(f", {number} {other}" for other, number in seen.most_common()[1:])
        return Found(
            technique(
                KIND, f"attention {kind}", declared, f"{some(count, 'call')} of {kind} attention{others}", calls=count
            )
        )
    if asked is None and not _has_attention(facts):
        scores = facts.sight.scores if facts.sight is not None else 0
        return Found(technique(KIND, "attention eager", None, EAGER, calls=0)) if scores else None
    if any(word in name for name in nodes for word in HIDES):
        return Found(technique(KIND, f"attention {asked}", declared, None)) if asked else None
    if not any(name.startswith(("SoftmaxBackward", "SafeSoftmaxBackward")) for name in nodes):
        unheard_of = asked is not None and not asked.startswith(KNOWN)
        return Found(technique(KIND, f"attention {asked}", declared, None)) if unheard_of else None
    told = technique(KIND, "attention eager", declared, EAGER, calls=0)
    on_device = any(parameter.device.type == "cuda" for parameter in facts.parameters)
    if asked is None or not asked.startswith(FUSED_NAMES) or not on_device:
        return Found(told)
    finding = facts.finding(
        "attention-not-fused",
        f"{declared}, and no fused attention kernel was seen: the scores of every pair of tokens are kept for backward.",
        "output_attentions=True, a float mask that needs a gradient, or a dtype or head size that no kernel takes make PyTorch "
        "fall back",
    )
    return Found(told, finding if facts.is_sure else None)


def _asked(roots: Iterable[torch.nn.Module]) -> str | None:
    """What a model of transformers was told. Each has the setting, those without any attention too: theirs can be "eager" only."""
    for root in roots:
        for module in (root, *root.children()):
            asked = getattr(getattr(module, "config", None), "_attn_implementation", None)
            has_choice = any(getattr(type(module), f"_supports_{kind}", True) for kind in ("sdpa", "flash_attn"))
            if isinstance(asked, str) and (has_choice or asked != "eager"):
                return asked
    return None


def _has_attention(facts: Facts) -> bool:
    return any(type(module).__name__ == "MultiheadAttention" for module in facts.modules)
