"""Optimizers, and the share of their state with 8 bits or fewer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vramscope.memory import lomo_state
from vramscope.memory.tensor_bytes import storages
from vramscope.protocol import messages
from vramscope.protocol.number_format import amount
from vramscope.protocol.series import CPU
from vramscope.techniques.observation import NARROW_BITS, Detection, TrainingState, setting_text, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "optimizer"
KIND_8BIT: Final = "optimizer_8bit"
DEFAULTS: Final = ("adamw_torch", "adamw_torch_fused")
"""Defaults of a Trainer."""
FAMILIES: Final = (
    "adafactor", "ademamix", "adagrad", "adadelta", "adamax", "adalomo", "lomo", "radam", "nadam", "adam", "rmsprop", "lion",
    "lamb", "lars", "lbfgs", "muon", "shampoo", "sophia", "prodigy", "sgd",
)  # fmt: skip
"""Families that an optimizer's name may contain. Longer names come before names that they contain."""
NARROW_PACKAGES: Final = ("bitsandbytes", "torchao")
SMALL_NUMBERS: Final = 4_096
"""Number of elements below which these packages keep 32-bit state."""
NARROW_NAMES: Final = re.compile(r"8-?bit|4-?bit|fp8|paged_lion_8|bnb_8", re.IGNORECASE)


def find(training: TrainingState) -> Detection | None:
    name, value = training.setting("optim")
    declared = setting_text(name, value) if name else None
    if not training.optimizers:
        return Detection(technique(KIND, str(value), declared, None)) if name else None
    classes = list(dict.fromkeys(type(optimizer).__name__ for optimizer in training.optimizers))
    implementation = _implementation(training.optimizers[0])
    state, parameters = _state_bytes(training)
    observed = " and ".join(
        dict.fromkeys(f"{_package(optimizer)}.{type(optimizer).__name__}" for optimizer in training.optimizers)
    ) + (f" ({implementation})" if implementation else "")
    kept = _kept_gradients(training)
    if kept:
        observed += f"; gradients stay allocated between steps: {amount(kept)} in addition to the activations"
    message = technique(
        KIND,
        " + ".join(classes) + (f" {implementation}" if implementation == "fused" else ""),
        declared,
        observed,
        implementation=implementation or None,
        state_bytes=state,
        state_bytes_per_parameter=round(state / parameters, 2) if parameters else None,
        optimizers=len(training.optimizers),
        kept_gradient_bytes=kept or None,
    )
    return Detection(message, _mismatch(training, declared, str(value), classes))


def _kept_gradients(training: TrainingState) -> int:
    """Bytes of gradients that still exist when the next backward begins: zeroed by ``zero_grad``, or never dropped.

    0 if they are dropped, the default of PyTorch since 2.0, and for models that take turns: one keeps its gradients.
    """
    observation = training.model_calls
    if observation is None or not observation.keeps_gradients or observation.takes_turns:
        return 0
    return sum(p.grad.numel() * p.grad.element_size() for p in training.parameters if p.grad is not None)


def _mismatch(
    training: TrainingState, declared: str | None, requested: str, classes: Sequence[str]
) -> messages.Pitfall | None:
    """Pitfall if the requested optimizer is of another family than the one that steps. Defaults do not count as requests."""
    wanted, found = _family(requested), [_family(name) for name in classes]
    if (
        declared is None
        or not training.is_sure
        or requested in DEFAULTS
        or not wanted
        or not all(found)
        or wanted in found
    ):
        return None
    return training.finding(
        "optimizer-differs",
        f"{declared}, but {' and '.join(classes)} steps. Its state has another size.",
        "check for an optimizer passed to the Trainer, or made by an overridden create_optimizer: it overrides the setting",
    )


def _family(name: str) -> str:
    """Family of an optimizer's name; "" if unknown. ``adamw`` and ``DeepSpeedCPUAdam`` are of the same family."""
    name = name.lower().replace("_", "")
    return next((family for family in FAMILIES if family in name), "")


def find_8bit(training: TrainingState) -> Detection | None:
    """Detect 8-bit state. Coverage counts parameters, not tensors: many small tensors and embeddings keep 32 bits."""
    name, value = training.setting("optim")
    declared = setting_text(name, value) if name and NARROW_NAMES.search(str(value)) else None
    narrow: Counter[int] = Counter()
    wide: dict[int, int] = {}
    widths: set[int] = set()
    for parameter, state in training.optimizer_states:
        bits = _moment_bits(parameter, state)
        if bits is not None and bits <= NARROW_BITS:
            narrow[bits] += parameter.numel()
        elif bits is not None:
            wide[id(parameter)] = parameter.numel()
            widths.add(bits)
    covered, rest = sum(narrow.values()), sum(wide.values())
    if not covered:
        if declared is None:
            return None
        if not training.optimizers or not rest:
            return Detection(technique(KIND_8BIT, "8-bit optimizer", declared, None))
        text = f"{declared}, but no state of {type(training.optimizers[0]).__name__} has 8 bits."
        advice = "check which optimizer the training uses"
        if _package(training.optimizers[0]) in NARROW_PACKAGES and max(wide.values()) < SMALL_NUMBERS:
            text += f" All trained tensors have fewer than {SMALL_NUMBERS:,} elements, and such tensors keep 32 bits."
            advice = "use an ordinary optimizer, which needs as little memory here"
        finding = training.finding("8bit-not-seen", text, advice)
        return Detection(technique(KIND_8BIT, "8-bit optimizer", declared, ""), finding if training.is_sure else None)
    fraction = covered / (covered + rest)
    bits = min(narrow)
    observed = f"{bits}-bit state for {covered:,} of {covered + rest:,} parameters"
    if wide:
        kind, size = _most_of(wide, training)
        observed += f"; {' and '.join(map(str, sorted(widths)))} bits for the rest, mostly {kind} ({size:,})"
    return Detection(
        technique(
            KIND_8BIT,
            f"{bits}-bit {int(100 * fraction)} %",
            declared,
            observed,
            covered_fraction=fraction,
            bits=bits,
        )
    )


def _moment_bits(parameter: torch.Tensor, state: Sequence[torch.Tensor]) -> int | None:
    """Bits per element of the narrowest state tensor of the parameter's size; None if there is none."""
    size = parameter.numel()
    return min((bits_of(value) for value in state if value.numel() == size > 1), default=None)


def bits_of(tensor: torch.Tensor) -> int:
    """Bits per element. Quantized wrappers claim a wide dtype, so the class name decides."""
    inner = getattr(tensor, "_local_tensor", tensor)  # a DTensor's own part
    named = re.search(r"([48])[Bb]it|[Ff][Pp](8)", type(inner).__name__)
    return int(named[1] or named[2]) if named else inner.element_size() * 8


def _most_of(wide: Mapping[int, int], training: TrainingState) -> tuple[str, int]:
    """Module class with the most of these parameters, and their number."""
    kinds: Counter[str] = Counter()
    for module in training.modules:
        for parameter in module._parameters.values():
            kinds[type(module).__name__] += wide.get(id(parameter), 0)
    kind, size = kinds.most_common(1)[0] if kinds else ("", 0)
    return (kind, size) if size else ("others", sum(wide.values()))


def _state_bytes(training: TrainingState) -> tuple[int, int]:
    """Bytes of all state on all devices, without duplicate storages; and the number of trained parameters."""
    sizes: dict[int, int] = {}
    kept = [value for _, state in training.optimizer_states for value in state]
    kept += [
        value
        for optimizer in training.optimizers
        for value in lomo_state.state_of(optimizer)
        if hasattr(value, "device")
    ]
    for value in kept:
        sizes.update(storages(value, value.device.index if value.device.type == "cuda" else CPU))
    groups = (group["params"] for optimizer in training.optimizers for group in optimizer.param_groups)
    # The copies of an offloading optimizer need no gradient.
    with_state = {id(parameter) for parameter, _ in training.optimizer_states}
    trained = {id(p): p.numel() for parameters in groups for p in parameters if p.requires_grad or id(p) in with_state}
    return sum(sizes.values()), sum(trained.values())


def _implementation(optimizer: torch.optim.Optimizer) -> str:
    """``fused``, ``foreach`` or ``single``, as requested; "" if PyTorch chooses."""
    requested = optimizer.defaults
    if requested.get("fused"):
        return "fused"
    return {True: "foreach", False: "single"}.get(requested.get("foreach"), "")


def _package(optimizer: object) -> str:
    module = type(optimizer).__module__
    return "torch.optim" if module.startswith("torch.optim") else module.partition(".")[0]
