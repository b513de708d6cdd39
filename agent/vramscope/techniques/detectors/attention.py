"""Attention implementation: requested in the model's configuration, observed by the names of graph nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from vramscope.techniques.observation import Detection, TrainingState, plural, technique

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
"""Part of a node's name, and the implementation's name."""
HIDES: Final = ("CheckpointFunction", "CompiledFunction")
"""Nodes that replace a part of the graph. Attention inside that part is invisible."""
EAGER: Final = "softmax over whole score matrices; no fused kernel"
FUSED_NAMES: Final = ("sdpa", "flash", "flex")
KNOWN: Final = ("eager", "sdpa", "flex")
"""Implementations with known node names. If the graph has none of them, no attention ran."""


def find(training: TrainingState) -> Detection | None:
    requested = _requested(training.roots)
    declared = None if requested is None else f"attn_implementation={requested!r}"
    nodes: Counter[str] = training.observation.nodes if training.observation is not None else Counter()
    if not nodes:
        return Detection(technique(KIND, f"attention {requested}", declared, None)) if requested else None
    counts: Counter[str] = Counter()
    for name, count in nodes.items():
        for word, kind in NODES:
            if word in name:
                counts[kind] += count
                break
    if counts:
        kind, count = counts.most_common(1)[0]
        others = "".join(f", {number} {other}" for other, number in counts.most_common()[1:])
        return Detection(
            technique(
                KIND, f"attention {kind}", declared, f"{plural(count, 'call')} of {kind} attention{others}", calls=count
            )
        )
    if requested is None and not _has_attention(training):
        scores = training.observation.score_softmaxes if training.observation is not None else 0
        return Detection(technique(KIND, "attention eager", None, EAGER, calls=0)) if scores else None
    if any(word in name for name in nodes for word in HIDES):
        return Detection(technique(KIND, f"attention {requested}", declared, None)) if requested else None
    if not any(name.startswith(("SoftmaxBackward", "SafeSoftmaxBackward")) for name in nodes):
        is_unknown = requested is not None and not requested.startswith(KNOWN)
        return Detection(technique(KIND, f"attention {requested}", declared, None)) if is_unknown else None
    message = technique(KIND, "attention eager", declared, EAGER, calls=0)
    on_device = any(parameter.device.type == "cuda" for parameter in training.parameters)
    if requested is None or not requested.startswith(FUSED_NAMES) or not on_device:
        return Detection(message)
    finding = training.finding(
        "attention-not-fused",
        f"{declared}, but no fused attention kernel ran. The scores of every pair of tokens are kept for backward.",
        "check for output_attentions=True, a float mask that needs a gradient, or a dtype or head size that no fused kernel "
        "supports",
    )
    return Detection(message, finding if training.is_sure else None)


def _requested(roots: Iterable[torch.nn.Module]) -> str | None:
    """Setting of a transformers model. Models without attention have it too: theirs can only be "eager"."""
    for root in roots:
        for module in (root, *root.children()):
            requested = getattr(getattr(module, "config", None), "_attn_implementation", None)
            has_choice = any(getattr(type(module), f"_supports_{kind}", True) for kind in ("sdpa", "flash_attn"))
            if isinstance(requested, str) and (has_choice or requested != "eager"):
                return requested
    return None


def _has_attention(training: TrainingState) -> bool:
    return any(type(module).__name__ == "MultiheadAttention" for module in training.modules)
