"""Mixed precision: autocast and a gradient scaler, or parameters that are 16 bits wide themselves, trained or frozen: different
things."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from vramscope.integrations import zero
from vramscope.protocol import messages
from vramscope.techniques.detectors.quantization import narrow_bits
from vramscope.techniques.observation import Facts, Found, all_ranks, said, some, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "mixed_precision"
SHORT: Final = {"bfloat16": "bf16", "float16": "fp16", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8"}

BY_NAME: Final = {"bf16": "bfloat16", "16": "float16"}
"""how a setting names one, the longer name first"""

FLOAT8: Final = re.compile("(mm|matmul|linear).*(float8|fp8)", re.IGNORECASE)
"""in names of the graph's nodes: torchao's products, and nothing that rounds to 8 bits only"""


def find(facts: Facts) -> Found | None:
    found, products = _of_calls_and_weights(facts), _float8_products(facts)
    if not products:
        return found
    text = f"{some(products, 'product')} of matrices in float8"
    if found is None or not found.technique.observed:
        return Found(technique(KIND, "fp8", _declared(facts), text, dtype="float8", autocast=False))
    told = found.technique
    both = msgspec.structs.replace(told, chip=f"{told.chip} + fp8", observed=f"{told.observed}, {text}")
    return Found(both, found.finding)


def _float8_products(facts: Facts) -> int:
    """Beside what else is of 16 bits: only the matrices that are multiplied are of 8, for that moment."""
    nodes = {} if facts.sight is None else facts.sight.nodes
    return sum(count for name, count in nodes.items() if FLOAT8.search(name))


def _of_calls_and_weights(facts: Facts) -> Found | None:
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
            technique(KIND, SHORT.get(dtype, dtype), declared, observed, dtype=dtype, scaler=scaler, autocast=True),
            _differs(facts, declared, set(heard.autocast), observed),
        )
    cast = _cast_weights(facts)
    if cast is not None:
        dtype, calls = cast
        observed = (
            f"weights cast to {dtype} in {calls} of {some(heard.calls if heard is not None else 0, 'module call')}"
        )
        told = technique(KIND, SHORT[dtype], declared, observed, dtype=dtype, autocast=False)
        return Found(told, _differs(facts, declared, {dtype}, observed))
    if weights:
        chip, observed = f"{SHORT[weights]} weights", f"the trained parameters themselves are {weights}"
        if not _steps_them(facts, weights):
            observed = f"the model's parameters are {weights}"
            if _has_masters(facts, weights):
                chip += " with fp32 masters"
                observed += ", and the optimizer steps float32 copies of them"
        told = technique(KIND, chip, declared, observed, dtype=weights, autocast=False)
        return Found(told, _differs(facts, declared, {weights}, observed))
    if declared is None:
        frozen = _frozen_weights(facts)
        if not frozen:
            return _products(facts)
        told = technique(
            KIND, f"{SHORT[frozen]} frozen weights", None, f"frozen weights in {frozen}", dtype=frozen, autocast=False
        )
        return Found(told)
    chip = SHORT.get(_dtype_of(declared), "fp8")
    if heard is None or chip == "fp8":  # (TransformerEngine's and MS-AMP's cannot be seen)
        return Found(technique(KIND, chip, declared, None))
    finding = facts.finding(
        "mixed-precision-not-seen",
        f"{declared}, and no module ran under autocast in {facts.observed} observed steps, and the trained parameters are 32 bits "
        "wide: activations take their full size.",
        "run the forward under torch.autocast, or let the framework's own prepared model do it",
    )
    return Found(technique(KIND, chip, declared, ""), finding if facts.is_sure else None)


def _declared(facts: Facts) -> str | None:
    name, value = facts.setting("bf16", "fp16", "mixed_precision")
    if name:
        return said(name, value)
    precision = str(facts.config.get("precision", ""))
    return said("precision", precision) if precision[:2] in ("16", "bf", "tr") else None


def _products(facts: Facts) -> Found | None:
    """TF32: matrices of float32 are multiplied with 10 bits of each fraction. It saves time, and no memory."""
    name, value = facts.setting("tf32")
    on_device = any(parameter.is_cuda for parameter in facts.parameters)
    allowed = on_device and _allows_tf32()
    if not name and not allowed:
        return None
    observed = "products of float32 matrices may run in TF32: faster, in the same memory" if allowed else ""
    return Found(technique(KIND, "tf32", said(name, value) if name else None, observed if on_device else None))


def _allows_tf32() -> bool:
    """Asked in PyTorch's newer words where it has them: with both kinds in use the older ones raise."""
    import torch

    products = torch.backends.cuda.matmul
    asked = getattr(products, "fp32_precision", None)
    return asked == "tf32" if asked is not None else bool(products.allow_tf32)


def _differs(facts: Facts, declared: str | None, seen: set[str], observed: str) -> messages.Finding | None:
    """One of the two dtypes of 16 bits was declared, and the other one alone is seen."""
    wanted = _dtype_of(declared or "")
    if not facts.is_sure or not wanted or wanted in seen or seen.isdisjoint(BY_NAME.values()):
        return None
    return facts.finding(
        "mixed-precision-differs",
        f"{declared}, and what is seen is another: {observed}. Both take 16 bits; float16 needs its loss scaled, bfloat16 "
        "keeps fewer digits.",
        "look for a torch.autocast of one's own, in the model's forward say: it goes before the framework's; or for weights that "
        "were loaded in the other dtype",
    )


def _dtype_of(declared: str) -> str:
    """Which of the two it names, ``'16-mixed'`` too; "" where it is neither."""
    if "fp8" in declared or "transformer-engine" in declared:
        return ""
    return next((dtype for name, dtype in BY_NAME.items() if name in declared), "")


def _cast_weights(facts: Facts) -> tuple[str, int] | None:
    """(dtype, how many calls of modules) that FSDP, say, casts weights to for the time of their forward, where each is kept in
    another: a frozen part that is 16 bits wide, and stays so, is not cast."""
    if facts.heard is None:
        return None
    modules = {id(module): module for module in facts.modules}
    anywhere = {parameter.dtype for parameter in facts.parameters}  # FSDP keeps many weights as one flat parameter
    cast: Counter[str] = Counter()
    for (key, dtype), calls in facts.heard.weights.items():
        if key in modules:
            weight = modules[key]._parameters.get("weight")
            if dtype not in (anywhere if weight is None else (weight.dtype,)):
                cast[str(dtype).removeprefix("torch.")] += calls
    name, calls = cast.most_common(1)[0] if cast else ("", 0)
    return (name, calls) if name in SHORT else None


def _frozen_weights(facts: Facts) -> str:
    """The dtype of most weights that ran with gradients on and learn nothing, where that is one of 16 bits or less; else "". What
    a teacher has, which runs without, is no part of the training."""
    heard = set() if facts.heard is None else {key for key, _ in facts.heard.weights}
    # What has state learns all the same: of two networks that take turns, say, one is frozen for the moment.
    learning = {id(parameter) for parameter, _ in facts.states}
    weights = [module._parameters.get("weight") for module in facts.modules if id(module) in heard]
    still = [p for p in weights if p is not None and not p.requires_grad and id(p) not in learning]
    return _narrow(p for p in still if narrow_bits(p) is None)  # (a quantized one may say that it is of 16)


def _narrow_weights(facts: Facts) -> str:
    """The dtype of most trained parameters, where that is one of 16 bits or less; else ""."""
    return _narrow(parameter for parameter in facts.parameters if parameter.requires_grad)


def _steps_them(facts: Facts, dtype: str) -> bool:
    """Whether the optimizers have the model's own parameters of this dtype; taken for granted before the first step."""
    stepped = set(map(id, _stepped(facts)))
    return not stepped or any(id(parameter) in stepped for parameter in _trained(facts, dtype))


def _has_masters(facts: Facts, dtype: str) -> bool:
    """Whether they have as many elements in 32 bits beside the model, on all ranks together where each has a share."""
    own = set(map(id, facts.parameters))
    beside = sum(p.numel() for p in _stepped(facts) if id(p) not in own and str(p.dtype) == "torch.float32")
    # (ZeRO's third stage empties parameters, and keeps their size beside them.)
    needed = sum(getattr(one, "ds_numel", one.numel()) for one in _trained(facts, dtype))
    return bool(beside * all_ranks() >= needed)


def _stepped(facts: Facts) -> list[torch.Tensor]:
    """ZeRO's third stage gives its optimizer parameters for as long as one of its steps takes."""
    named = [p for optimizer in facts.optimizers for group in optimizer.param_groups for p in group["params"]]
    return list({id(p): p for p in (*named, *zero.parameters())}.values())


def _trained(facts: Facts, dtype: str) -> list[torch.Tensor]:
    return [p for p in facts.parameters if p.requires_grad and str(p.dtype) == f"torch.{dtype}"]


def _narrow(parameters: Iterable[torch.Tensor]) -> str:
    """The floating dtype that most of these have, by their elements, where it has 16 bits or less; else ""."""
    sizes: Counter[str] = Counter()
    for parameter in parameters:
        if parameter.dtype.is_floating_point:
            sizes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
    most = sizes.most_common(1)[0][0] if sizes else ""
    return most if most in SHORT else ""
