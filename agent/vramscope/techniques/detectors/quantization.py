"""Weights that are kept in 8 bits or fewer, such as the frozen base that QLoRA trains adapters on.

Known by what a weight is made of, where it is of a class of its own: whole numbers of a byte, or a tensor that pretends to a wide
dtype over parts that are narrow.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from vramscope.techniques.observation import NARROW_BITS, Facts, Found, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "quantized_weights"


def find(facts: Facts) -> Found | None:
    declared = _declared(facts)
    narrow: Counter[int] = Counter()
    for module in facts.modules:
        weight = module._parameters.get("weight")
        bits = None if weight is None else narrow_bits(weight)
        if weight is not None and bits is not None:
            narrow[bits] += numbers_in(weight)
    if not narrow:
        # (Some methods keep their numbers in buffers, packed as they like: those are not known.)
        return Found(technique(KIND, "quantized weights", declared, None)) if declared else None
    bits, total = narrow.most_common(1)[0][0], sum(map(numbers_in, facts.parameters))
    told = [f"{count:,} of {total:,} parameters are kept in {bits} bits" for bits, count in narrow.most_common()]
    return Found(
        technique(
            KIND,
            f"{bits}-bit weights",
            declared,
            " and ".join(told),
            bits=bits,
            covered_fraction=sum(narrow.values()) / total,
        )
    )


def _declared(facts: Facts) -> str | None:
    """What transformers and diffusers keep of it in a model's configuration."""
    for module in facts.modules:
        asked = getattr(vars(module).get("config"), "quantization_config", None)
        if asked is not None:
            told: dict[str, Any] = asked if isinstance(asked, dict) else vars(asked)
            method = told.get("quant_method", "")
            names = {name.lstrip("_") for name, value in told.items() if value is True}
            switches = sorted(name for name in names if name.startswith("load_in_"))
            return ", ".join(["quantization_config: " + str(getattr(method, "value", method)), *switches])
    return None


def numbers_in(parameter: torch.Tensor) -> int:
    """How many numbers a parameter stands for: bitsandbytes packs two into a byte, and keeps the shape that they had."""
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return math.prod(shape) if shape else parameter.numel()


def narrow_bits(weight: torch.Tensor) -> int | None:
    """Bits of one of its numbers, where they are quantized to 8 or fewer; else None."""
    from torch import Tensor, nn

    own = getattr(weight, "_local_tensor", weight)  # a DTensor's own part
    if type(own) in (Tensor, nn.Parameter):
        return None  # bytes that a module of one's own keeps may be anything
    kept = max(_parts(own), key=lambda part: part.numel() * part.element_size())
    if kept.is_complex() or kept.element_size() > 1 or (kept is own and kept.dtype.is_floating_point):
        return None
    bits = round(8 * kept.numel() / max(numbers_in(own), 1))
    return bits if 0 < bits <= NARROW_BITS and str(kept.dtype) != "torch.bool" else None


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What a tensor that is made of others is made of, down to the last; else itself."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    inner = [getattr(tensor, name) for name in flatten(tensor)[0]]
    return [part for one in inner if one is not None for part in _parts(one)] or [tensor]
