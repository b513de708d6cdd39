"""The optimizers, and how much of their state is kept in 8 bits or fewer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from vramscope.integrations import lomo
from vramscope.memory.tensor_bytes import storages
from vramscope.protocol import messages
from vramscope.protocol.series import CPU
from vramscope.techniques.observation import NARROW_BITS, Facts, Found, said, technique

if TYPE_CHECKING:
    import torch

KIND: Final = "optimizer"
KIND_8BIT: Final = "optimizer_8bit"
DEFAULTS: Final = ("adamw_torch", "adamw_torch_fused")
"""what a Trainer says where its user said nothing"""
FAMILIES: Final = (
    "adafactor", "ademamix", "adagrad", "adadelta", "adamax", "adalomo", "lomo", "radam", "nadam", "adam", "rmsprop", "lion",
    "lamb", "lars", "lbfgs", "muon", "shampoo", "sophia", "prodigy", "sgd",
)  # fmt: skip
"""of which a name may say one: the longer before what they contain"""
NARROW_PACKAGES: Final = ("bitsandbytes", "torchao")
SMALL_NUMBERS: Final = 4_096
"""of a tensor: with fewer these two leave its state as it is"""
NARROW_NAMES: Final = re.compile(r"8-?bit|4-?bit|fp8|paged_lion_8|bnb_8", re.IGNORECASE)


def find(facts: Facts) -> Found | None:
    name, value = facts.setting("optim")
    declared = said(name, value) if name else None
    if not facts.optimizers:
        return Found(technique(KIND, str(value), declared, None)) if name else None
    classes = list(dict.fromkeys(type(optimizer).__name__ for optimizer in facts.optimizers))
    how = _how(facts.optimizers[0])
    state, parameters = _state_bytes(facts)
    observed = " and ".join(
        dict.fromkeys(f"{_package(optimizer)}.{type(optimizer).__name__}" for optimizer in facts.optimizers)
    ) + (f" ({how})" if how else "")
    kept = _kept_gradients(facts)
    if kept:
        observed += f"; gradients are kept from step to step, {kept / 2**20:,.3g} MiB beside the activations"
    told = technique(
        KIND,
        " + ".join(classes) + (f" {how}" if how == "fused" else ""),
        declared,
        observed,
        implementation=how or None,
        state_bytes=state,
        state_bytes_per_parameter=round(state / parameters, 2) if parameters else None,
        optimizers=len(facts.optimizers),
        kept_gradient_bytes=kept or None,
    )
    return Found(told, _other_kind(facts, declared, str(value), classes))


def _kept_gradients(facts: Facts) -> int:
    """Bytes of gradients that ``zero_grad`` fills with zeros, or nobody drops: those of the step before are there when backward
    begins. 0 where they are dropped, PyTorch's default since 2.0, and with models that take turns: one waits with its own."""
    heard = facts.counted
    if heard is None or not heard.keeps_gradients or heard.turns:
        return 0
    return sum(p.grad.numel() * p.grad.element_size() for p in facts.parameters if p.grad is not None)


def _other_kind(facts: Facts, declared: str | None, asked: str, classes: Sequence[str]) -> messages.Finding | None:
    """An optimizer was asked for, and what steps is none of its family. What nobody asked for, a default, is no promise."""
    wanted, seen = _family(asked), [_family(name) for name in classes]
    if declared is None or not facts.is_sure or asked in DEFAULTS or not wanted or not all(seen) or wanted in seen:
        return None
    return facts.finding(
        "optimizer-differs",
        f"{declared}, and what steps is {' and '.join(classes)}: its state takes another size.",
        "an optimizer that is handed to the Trainer, or made by a create_optimizer of one's own, goes before the setting",
    )


def _family(name: str) -> str:
    """``adamw`` and ``DeepSpeedCPUAdam`` are of one; "" where the name says none that is known."""
    name = name.lower().replace("_", "")
    return next((family for family in FAMILIES if family in name), "")


def find_8bit(facts: Facts) -> Found | None:
    """Coverage is by parameters, not by tensors: embeddings and small tensors often stay at 32 bits, and they are many."""
    name, value = facts.setting("optim")
    declared = said(name, value) if name and NARROW_NAMES.search(str(value)) else None
    narrow: Counter[int] = Counter()
    wide: dict[int, int] = {}
    widths: set[int] = set()
    for parameter, state in facts.states:
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
        if not facts.optimizers or not rest:
            return Found(technique(KIND_8BIT, "8-bit optimizer", declared, None))
        text = f"{declared}, and no state of {type(facts.optimizers[0]).__name__} is 8 bits wide."
        advice = "look at which optimizer the training was really given"
        if _package(facts.optimizers[0]) in NARROW_PACKAGES and max(wide.values()) < SMALL_NUMBERS:
            text += f" None of the trained tensors has {SMALL_NUMBERS:,} numbers, and smaller ones keep their 32 bits."
            advice = "leave it: so little state is not worth it; an ordinary optimizer needs as much"
        finding = facts.finding("8bit-not-seen", text, advice)
        return Found(technique(KIND_8BIT, "8-bit optimizer", declared, ""), finding if facts.is_sure else None)
    fraction = covered / (covered + rest)
    bits = min(narrow)
    observed = f"state of {covered:,} of {covered + rest:,} parameters has {bits} bits"
    if wide:
        kind, size = _most_of(wide, facts)
        observed += f"; {' and '.join(map(str, sorted(widths)))} bits remain, most for {kind} ({size:,})"
    return Found(
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
    """Bits of a moment's element, of the narrowest; None where there is none of the parameter's size."""
    size = parameter.numel()
    return min((bits_of(value) for value in state if value.numel() == size > 1), default=None)


def bits_of(tensor: torch.Tensor) -> int:
    """Of one element. Quantised wrappers pretend to a wide dtype: their class's name tells."""
    inner = getattr(tensor, "_local_tensor", tensor)  # a DTensor's own part
    named = re.search(r"([48])[Bb]it|[Ff][Pp](8)", type(inner).__name__)
    return int(named[1] or named[2]) if named else inner.element_size() * 8


def _most_of(wide: Mapping[int, int], facts: Facts) -> tuple[str, int]:
    """The class of module that most of these parameters belong to, and how many there are in it."""
    kinds: Counter[str] = Counter()
    for module in facts.modules:
        for parameter in module._parameters.values():
            kinds[type(module).__name__] += wide.get(id(parameter), 0)
    kind, size = kinds.most_common(1)[0] if kinds else ("", 0)
    return (kind, size) if size else ("others", sum(wide.values()))


def _state_bytes(facts: Facts) -> tuple[int, int]:
    """Bytes of all state, wherever it is, each storage once; and how many parameters are trained."""
    seen: dict[int, int] = {}
    kept = [value for _, state in facts.states for value in state]
    kept += [value for optimizer in facts.optimizers for value in lomo.state_of(optimizer) if hasattr(value, "device")]
    for value in kept:
        seen.update(storages(value, value.device.index if value.device.type == "cuda" else CPU))
    groups = (group["params"] for optimizer in facts.optimizers for group in optimizer.param_groups)
    with_state = {
        id(parameter) for parameter, _ in facts.states
    }  # an offloading optimizer's own copies need no gradient
    trained = {id(p): p.numel() for parameters in groups for p in parameters if p.requires_grad or id(p) in with_state}
    return sum(seen.values()), sum(trained.values())


def _how(optimizer: torch.optim.Optimizer) -> str:
    """``fused``, ``foreach`` or ``single``, as it was asked for; "" where PyTorch chooses."""
    asked = optimizer.defaults
    if asked.get("fused"):
        return "fused"
    return {True: "foreach", False: "single"}.get(asked.get("foreach"), "")


def _package(optimizer: object) -> str:
    module = type(optimizer).__module__
    return "torch.optim" if module.startswith("torch.optim") else module.partition(".")[0]
