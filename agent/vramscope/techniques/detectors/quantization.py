"""Weights with 8 bits or fewer, such as the frozen base model of QLoRA.

Detected by the parts of a weight that has its own tensor class: byte integers, or a tensor with a wide dtype and narrow parts.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from vramscope.techniques.observation import NARROW_BITS, Detection, TrainingState, technique, weight_of

if TYPE_CHECKING:
    import torch

KIND: Final = "quantized_weights"


def find(training: TrainingState) -> Detection | None:
    declared = _declared(training)
    narrow: Counter[int] = Counter()
    for module in training.modules:
        weight = weight_of(module)
        bits = None if weight is None else narrow_bits(weight)
        if weight is not None and bits is not None:
            narrow[bits] += numbers_in(weight)
    if not narrow:
        # Some methods pack their weights into buffers. These are not detected.
        return Detection(technique(KIND, "quantized weights", declared, None)) if declared else None
    bits, total = narrow.most_common(1)[0][0], sum(map(numbers_in, training.parameters))
    shares = [f"{count:,} of {total:,} parameters have {bits} bits" for bits, count in narrow.most_common()]
    return Detection(
        technique(
            KIND,
            f"{bits}-bit weights",
            declared,
            " and ".join(shares),
            bits=bits,
            covered_fraction=sum(narrow.values()) / total,
        )
    )


def _declared(training: TrainingState) -> str | None:
    """Quantization setting in a model's configuration, by transformers or diffusers."""
    for module in training.modules:
        setting = getattr(vars(module).get("config"), "quantization_config", None)
        if setting is not None:
            values: dict[str, Any] = setting if isinstance(setting, dict) else vars(setting)
            method = values.get("quant_method", "")
            names = {name.lstrip("_") for name, value in values.items() if value is True}
            switches = sorted(name for name in names if name.startswith("load_in_"))
            return ", ".join(["quantization_config: " + str(getattr(method, "value", method)), *switches])
    return None


def numbers_in(parameter: torch.Tensor) -> int:
    """Number of elements of a parameter before packing. bitsandbytes packs two into a byte and stores the original shape."""
    shape = getattr(getattr(parameter, "quant_state", None), "shape", None)
    return math.prod(shape) if shape else parameter.numel()


def narrow_bits(weight: torch.Tensor) -> int | None:
    """Bits per element of a quantized weight; None if it is not quantized to 8 bits or fewer."""
    from torch import Tensor, nn

    own = getattr(weight, "_local_tensor", weight)  # a DTensor's own part
    if type(own) in (Tensor, nn.Parameter):
        return None  # plain byte tensors of a user's module may be anything
    largest = max(_parts(own), key=lambda part: part.numel() * part.element_size())
    if largest.is_complex() or largest.element_size() > 1 or (largest is own and largest.dtype.is_floating_point):
        return None
    bits = round(8 * largest.numel() / max(numbers_in(own), 1))
    return bits if 0 < bits <= NARROW_BITS and str(largest.dtype) != "torch.bool" else None


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Innermost tensors of a wrapper tensor; the tensor itself if it is no wrapper."""
    flatten = getattr(type(tensor), "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    inner = [getattr(tensor, name) for name in flatten(tensor)[0]]
    return [part for one in inner if one is not None for part in _parts(one)] or [tensor]
