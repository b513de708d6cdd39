"""Mixed precision: autocast and a gradient scaler, or 16-bit parameters, trained or frozen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from vramscope.memory import deepspeed_zero
from vramscope.protocol import messages
from vramscope.techniques.detectors.quantization import narrow_bits
from vramscope.techniques.observation import (
    Detection,
    TrainingState,
    plural,
    setting_text,
    technique,
    weight_of,
    world_size,
)

if TYPE_CHECKING:
    import torch

KIND: Final = "mixed_precision"
SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}

BY_NAME: Final = {"bf16": "bfloat16", "16": "float16"}
"""Part of a setting -> dtype; longer names first."""

FLOAT8: Final = re.compile("(mm|matmul|linear).*(float8|fp8)", re.IGNORECASE)
"""Matches graph nodes of torchao's float8 products, but not of plain rounding to 8 bits."""


def find(training: TrainingState) -> Detection | None:
    found, products = _calls_and_weights(training), _float8_products(training)
    if not products:
        return found
    text = plural(products, "float8 matrix product")
    if found is None or not found.technique.observed:
        return Detection(technique(KIND, "fp8", _declared(training), text, dtype="float8", autocast=False))
    other = found.technique
    both = msgspec.structs.replace(other, chip=f"{other.chip} + fp8", observed=f"{other.observed}, {text}")
    return Detection(both, found.finding)


def _float8_products(training: TrainingState) -> int:
    """Number of float8 products. Only their operands have 8 bits; all other tensors may have 16."""
    nodes = {} if training.observation is None else training.observation.nodes
    return sum(count for name, count in nodes.items() if FLOAT8.search(name))


def _calls_and_weights(training: TrainingState) -> Detection | None:
    declared = _declared(training)
    weights = _narrow_weights(training)
    observation = training.module_calls
    if observation is not None and observation.autocast:
        dtype, calls = observation.autocast.most_common(1)[0]
        scaler = observation.scaled_losses > 0
        observed = f"autocast to {dtype} in {calls} of {observation.calls} module calls" + (
            ", with a GradScaler" if scaler else ""
        )
        return Detection(
            technique(KIND, SHORT.get(dtype, dtype), declared, observed, dtype=dtype, scaler=scaler, autocast=True),
            _mismatch(training, declared, set(observation.autocast), observed),
        )
    cast = _cast_weights(training)
    if cast is not None:
        dtype, calls = cast
        total = observation.calls if observation is not None else 0
        observed = f"weights cast to {dtype} in {calls} of {plural(total, 'module call')}"
        message = technique(KIND, SHORT[dtype], declared, observed, dtype=dtype, autocast=False)
        return Detection(message, _mismatch(training, declared, {dtype}, observed))
    if weights:
        chip, observed = f"{SHORT[weights]} weights", f"trained parameters are {weights}"
        if not _are_stepped(training, weights):
            observed = f"model parameters are {weights}"
            if _has_masters(training, weights):
                chip += " with fp32 masters"
                observed += "; the optimizer updates float32 copies"
        message = technique(KIND, chip, declared, observed, dtype=weights, autocast=False)
        return Detection(message, _mismatch(training, declared, {weights}, observed))
    if declared is None:
        frozen = _frozen_weights(training)
        if not frozen:
            return _tf32(training)
        message = technique(
            KIND, f"{SHORT[frozen]} frozen weights", None, f"frozen weights in {frozen}", dtype=frozen, autocast=False
        )
        return Detection(message)
    chip = SHORT.get(_dtype_of(declared), "fp8")
    if observation is None or chip == "fp8":  # TransformerEngine and MS-AMP cannot be observed
        return Detection(technique(KIND, chip, declared, None))
    finding = training.finding(
        "mixed-precision-not-seen",
        f"{declared}, but no module ran under autocast in {training.observed} observed steps, and trained parameters have 32 "
        "bits. Activations take their full size.",
        "run the forward pass under torch.autocast, or call the model that the framework prepared",
    )
    return Detection(technique(KIND, chip, declared, ""), finding if training.is_sure else None)


def _declared(training: TrainingState) -> str | None:
    name, value = training.setting("bf16", "fp16", "mixed_precision")
    if name:
        return setting_text(name, value)
    precision = str(training.config.get("precision", ""))
    return setting_text("precision", precision) if precision[:2] in ("16", "bf", "tr") else None


def _tf32(training: TrainingState) -> Detection | None:
    """TF32: float32 matrix products with 10-bit fractions. It saves time, not memory."""
    name, value = training.setting("tf32")
    on_device = any(parameter.is_cuda for parameter in training.parameters)
    allowed = on_device and _allows_tf32()
    if not name and not allowed:
        return None
    observed = "float32 matrix products may use TF32: faster, same memory" if allowed else ""
    return Detection(
        technique(KIND, "tf32", setting_text(name, value) if name else None, observed if on_device else None)
    )


def _allows_tf32() -> bool:
    """Read the newer setting of PyTorch if it exists. The older one raises if both are used."""
    import torch

    products = torch.backends.cuda.matmul
    precision = getattr(products, "fp32_precision", None)
    return precision == "tf32" if precision is not None else bool(products.allow_tf32)


def _mismatch(
    training: TrainingState, declared: str | None, dtypes: set[str], observed: str
) -> messages.Pitfall | None:
    """Pitfall if one 16-bit dtype was declared and only the other one is used."""
    wanted = _dtype_of(declared or "")
    if not training.is_sure or not wanted or wanted in dtypes or dtypes.isdisjoint(BY_NAME.values()):
        return None
    return training.finding(
        "mixed-precision-differs",
        f"{declared}, but the other 16-bit dtype is used: {observed}. Both take the same memory; float16 needs a scaled loss, "
        "bfloat16 has fewer digits.",
        "look for torch.autocast in the model's own code, which overrides the framework's, or for weights that were loaded in "
        "the other dtype",
    )


def _dtype_of(declared: str) -> str:
    """The declared 16-bit dtype, also of ``'16-mixed'``; "" if there is none."""
    if "fp8" in declared or "transformer-engine" in declared:
        return ""
    return next((dtype for name, dtype in BY_NAME.items() if name in declared), "")


def _cast_weights(training: TrainingState) -> tuple[str, int] | None:
    """Dtype to which weights are cast during their forward pass (by FSDP, for example), and the number of module calls.

    A weight counts if it is stored in another dtype. Frozen 16-bit weights are not cast.
    """
    if training.module_calls is None:
        return None
    modules = {id(module): module for module in training.modules}
    anywhere = {parameter.dtype for parameter in training.parameters}  # FSDP stores many weights as one flat parameter
    cast: Counter[str] = Counter()
    for (key, dtype), calls in training.module_calls.weights.items():
        if key in modules:
            weight = weight_of(modules[key])
            if dtype not in (anywhere if weight is None else (weight.dtype,)):
                cast[str(dtype).removeprefix("torch.")] += calls
    name, calls = cast.most_common(1)[0] if cast else ("", 0)
    return (name, calls) if name in SHORT else None


def _frozen_weights(training: TrainingState) -> str:
    """Dtype of most frozen weights that ran with gradients enabled, if it has 16 bits or less; else "".

    The weights of a teacher, which runs without gradients, do not count.
    """
    called = set() if training.module_calls is None else {key for key, _ in training.module_calls.weights}
    # A parameter with optimizer state is trained: of two networks that take turns, one is frozen temporarily.
    learning = {id(parameter) for parameter, _ in training.optimizer_states}
    weights = [weight_of(module) for module in training.modules if id(module) in called]
    frozen = [p for p in weights if p is not None and not p.requires_grad and id(p) not in learning]
    return _narrow(p for p in frozen if narrow_bits(p) is None)  # a quantized weight may claim 16 bits


def _narrow_weights(training: TrainingState) -> str:
    """Dtype of most trained parameters, if it has 16 bits or less; else ""."""
    return _narrow(parameter for parameter in training.parameters if parameter.requires_grad)


def _are_stepped(training: TrainingState, dtype: str) -> bool:
    """Whether the optimizers update the model's own parameters of this dtype. True before the first step."""
    stepped = set(map(id, _stepped(training)))
    return not stepped or any(id(parameter) in stepped for parameter in _trained(training, dtype))


def _has_masters(training: TrainingState, dtype: str) -> bool:
    """Whether the optimizers have float32 copies of these parameters, on all ranks together."""
    own = set(map(id, training.parameters))
    copies = sum(p.numel() for p in _stepped(training) if id(p) not in own and str(p.dtype) == "torch.float32")
    # ZeRO stage 3 empties parameters and stores their size in an attribute.
    needed = sum(getattr(one, "ds_numel", one.numel()) for one in _trained(training, dtype))
    return bool(copies * world_size() >= needed)


def _stepped(training: TrainingState) -> list[torch.Tensor]:
    """Parameters of the optimizers. ZeRO stage 3 gives its optimizer parameters only during a step."""
    named = [p for optimizer in training.optimizers for group in optimizer.param_groups for p in group["params"]]
    return list({id(p): p for p in (*named, *deepspeed_zero.parameters())}.values())


def _trained(training: TrainingState, dtype: str) -> list[torch.Tensor]:
    return [p for p in training.parameters if p.requires_grad and str(p.dtype) == f"torch.{dtype}"]


def _narrow(parameters: Iterable[torch.Tensor]) -> str:
    """Floating dtype of most elements, if it has 16 bits or less; else ""."""
    sizes: Counter[str] = Counter()
    for parameter in parameters:
        if parameter.dtype.is_floating_point:
            sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    most = sizes.most_common(1)[0][0] if sizes else ""
    return most if most in SHORT else ""
