"""Mixed precision: autocast and a gradient scaler, or parameters that are 16 bits wide themselves. Two different things."""

from __future__ import annotations

from collections import Counter
from typing import Final

from vramscope.techniques.facts import Facts, Found, said, some, technique

KIND: Final = "mixed_precision"
SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}


def find(facts: Facts) -> Found | None:
    declared = _declared(facts)
    weights = _narrow_weights(facts)
    heard = facts.heard
    if heard is not None and heard.autocast:
        dtype, calls = heard.autocast.most_common(1)[0]
        scaler = heard.scaled > 0
        observed = f"autocast to {dtype} in {calls} of {heard.calls} module calls" + (
            ", with a GradScaler" if scaler else ""
        )
        return Found(
            technique(KIND, SHORT.get(dtype, dtype), declared, observed, dtype=dtype, scaler=scaler, autocast=True)
        )
    cast = _cast_weights(facts)
    if cast is not None:
        dtype, calls = cast
        observed = (
            f"weights cast to {dtype} in {calls} of {some(heard.calls if heard is not None else 0, 'module call')}"
        )
        return Found(technique(KIND, SHORT[dtype], declared, observed, dtype=dtype, autocast=False))
    if weights:
        observed = f"the trained parameters themselves are {weights}"
        return Found(
            technique(KIND, f"{SHORT.get(weights, weights)} weights", declared, observed, dtype=weights, autocast=False)
        )
    if declared is None:
        return None
    chip = "fp16" if "16" in declared and "bf16" not in declared else "bf16" if "bf16" in declared else "fp8"
    if heard is None:
        return Found(technique(KIND, chip, declared, None))
    finding = facts.finding(
        "mixed-precision-not-seen",
        f"{declared}, and no module ran under autocast in {facts.observed} observed steps, and the parameters are 32 bits wide: "
        "activations take their full size.",
        "run the forward under torch.autocast, or let the framework's own prepared model do it",
    )
    return Found(technique(KIND, chip, declared, ""), finding if facts.is_sure else None)


def _declared(facts: Facts) -> str | None:
    name, value = facts.setting("bf16", "fp16", "mixed_precision")
    if name:
        return said(name, value)
    precision = str(facts.config.get("precision", ""))
    return said("precision", precision) if precision[:2] in ("16", "bf", "tr") else None


def _cast_weights(facts: Facts) -> tuple[str, int] | None:
    """(dtype, how many calls of modules) that FSDP, say, casts weights to for the time of their forward, where they are wider."""
    if facts.heard is None or not facts.heard.weights:
        return None
    dtype, calls = facts.heard.weights.most_common(1)[0]
    name = str(dtype).removeprefix("torch.")
    kept = {parameter.dtype for parameter in facts.parameters if parameter.requires_grad}
    is_cast = name in SHORT and bool(kept) and dtype not in kept
    return (name, calls) if is_cast else None


def _narrow_weights(facts: Facts) -> str:
    """The dtype of most trained parameters, where that is a floating one of 16 bits or less; else ""."""
    sizes: Counter[str] = Counter()
    for parameter in facts.parameters:
        if parameter.requires_grad and parameter.dtype.is_floating_point:
            sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    most = sizes.most_common(1)[0][0] if sizes else ""
    return most if most in SHORT else ""
