"""Remedies: less memory for optimizer state, for temporary copies of its update, and for gradient buckets; lower precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vramscope.oom_diagnosis.estimate import FRAGMENTATION_MARGIN
from vramscope.oom_diagnosis.facts import COPIES
from vramscope_server.analysis.oom.remedies.remedy import Remedy, RemedyContext

EIGHT_BIT: Final = 2 + 8 / 256
"""State bytes per parameter of 8-bit Adam: two, plus two floats for each block of 256. The state has 8 bytes with fp32 and 4 with
bf16."""
MEASURED: Final = {"foreach": (-0.005, 0.13), "8-bit": (-0.005, 0.09), "no state": (-0.005, 0.07)}
"""Lowest and highest relative difference of measured savings to the formula (docs/out-of-memory.md). Measured savings are usually
larger, because blocks are larger than their tensors."""
STATE_ERROR: Final = 0.04
"""Maximum relative error of a saving that is shown."""
KEEPS_TWO_STATES: Final = frozenset({"Adam", "AdamW", "NAdam", "RAdam"})


def remedies_for(context: RemedyContext) -> Iterator[Remedy]:
    """Yield the remedies of this module."""
    yield from _buckets(context)
    yield from _update(context)
    yield from _state(context)
    yield from _precision(context)


def _buckets(context: RemedyContext) -> Iterator[Remedy]:
    bucket_bytes = context.facts.bucket_bytes
    if bucket_bytes:
        yield Remedy(
            what="DistributedDataParallel(..., gradient_as_bucket_view=True)",
            saves_bytes=bucket_bytes,
            enough=_without(context, bucket_bytes),
            source="measured",
            source_words="the sizes that it reports of its buckets: gradients are then views of them, not copies",
            cost="almost none",
            rank=1,
        )


def _update(context: RemedyContext) -> Iterator[Remedy]:
    record, trainable = context.record, context.facts.trainable_bytes or 0
    if context.facts.phase != "optimizer" or not trainable or record.state_bytes_per_parameter_byte is None:
        return  # LBFGS and many third-party optimizers have no foreach
    if record.update not in ("foreach", None):
        return
    # foreach copies all parameters at once; the loop one at a time, at most the largest.
    one = 2 * (record.largest_parameter_bytes or 0)
    estimate = replace(context.estimate, update_bytes=one, low_bytes=context.estimate.fixed_bytes)
    yield Remedy(
        what=f"{record.optimizer_kind or 'the optimizer'}(..., foreach=False), or fused=True",
        saves_bytes=max(0, trainable - one),
        enough=estimate.fits(context.available_bytes),
        source="formula",
        source_words=f"foreach copies all parameters at a time, the loop one ({_error('foreach')}); fused copies none",
        cost="foreach=False: a slower update; fused: none",
        rank=1,
        technique="optimizer",
    )


def _state(context: RemedyContext) -> Iterator[Remedy]:
    state = context.facts.full_state_bytes
    if state <= 0:
        return
    if context.record.optimizer_kind in KEEPS_TWO_STATES:
        # The largest parameter is usually an embedding, and transformers' Trainer keeps those in 32 bits.
        embedding = min(state, 2 * (context.record.largest_parameter_bytes or 0))
        narrow = _narrow_share(context)
        saved = (1 - narrow) * (1 - EIGHT_BIT / 8) + narrow * (1 - EIGHT_BIT / 4)
        instead = "8" if not narrow else "4" if narrow == 1 else "8 or 4"
        yield Remedy(
            what="an 8-bit optimizer (bitsandbytes; torchao needs weights whose number of elements is a multiple of 256)",
            saves_bytes=int(state * saved),
            enough=_without_state(context, int((state - embedding) * saved), saved),
            source="formula",
            source_words=f"2 bytes per parameter and two floats per 256, instead of {instead} ({_error('8-bit')}); "
            "tensors of fewer than 4096 elements keep 32-bit state",
            cost="state rounded to 8 bits",
            rank=5,
            technique="optimizer_8bit",
        )
    estimate = context.estimate
    enough = _without_state(replace(context, estimate=replace(estimate, update_bytes=0)), state, 1.0)
    if _only_state_was_missing(context):
        enough = True
    yield Remedy(
        what="SGD without momentum",
        saves_bytes=state if enough is False or state < context.least_bytes else _saved_without_state(context, state),
        enough=enough,
        source="formula",
        source_words=f"it keeps no state ({_error('no state')})",
        cost="changes convergence",
        rank=7,
        technique="optimizer",
    )


def _saved_without_state(context: RemedyContext, state: int) -> int | None:
    """Return the saving without optimizer state; None if it is not known well enough.

    It is the state, plus the copies of the update as far as they exceed the memory that scales with the batch.
    """
    facts, estimate = context.facts, context.estimate
    if estimate.working_bytes is None or estimate.is_crude or estimate.may_grow:
        return None
    known = context.record.state_bytes_per_parameter_byte is not None
    if facts.phase == "optimizer" and not known:
        return None  # the optimizer may have needed more state
    copies = estimate.update_bytes
    if copies and (context.record.update is None or context.record.optimizer_kind not in COPIES):
        return None  # only an upper bound of the number of copies is known
    # In the first update, the peak that is used for forward and backward includes the state that was just created.
    made = (facts.optimizer_bytes or 0) if facts.phase == "optimizer" and not facts.step else 0
    most = state + max(0, estimate.in_update_bytes - max(0, estimate.working_bytes - made))
    # New state of parameters that were frozen before may be as large as the memory of backward: about one gradient.
    is_hidden = facts.phase == "optimizer" and not estimate.working_bytes and (facts.optimizer_bytes or 0) < state
    hidden = (facts.asked_bytes or 0) if is_hidden else 0
    least = state + max(0, estimate.in_update_bytes - estimate.working_bytes - estimate.error_bytes - hidden)
    return (most + least) // 2 if most - least <= 2 * STATE_ERROR * most else None


def _precision(context: RemedyContext) -> Iterator[Remedy]:
    fixed, available = context.estimate.fixed_bytes, context.available_bytes
    less = int(fixed * (1 - _narrow_share(context)) / 2)
    if fixed <= available // 2 or not less:
        return
    yield Remedy(
        what="weights, gradients and state in bfloat16",
        saves_bytes=less,
        enough=False if fixed - less > available else None,
        source="formula",
        source_words="half the bytes of float32: at most, if everything is converted",
        cost="rounding: small updates may be lost",
        rank=6,
        technique="mixed_precision",
    )


def _error(of: str) -> str:
    """Return a text with the range of differences between measured savings and the formula."""
    least, most = MEASURED[of]
    return f"measured savings were {-least * 100:.3g} % smaller to {most * 100:.3g} % larger"


def _narrow_share(context: RemedyContext) -> float:
    """Return the share of the trainable parameters that already have 16 bits."""
    trainable = context.facts.trainable_bytes or 0
    return min(1.0, (context.record.narrow_bytes or 0) / trainable) if trainable else 0.0


def _only_state_was_missing(context: RemedyContext) -> bool:
    """Return whether the first update ran out, and forward and backward with all gradients fitted before it."""
    facts = context.facts
    if facts.phase != "optimizer" or facts.step or not facts.state_is_unknown or facts.peak_now_bytes is None:
        return False
    needed = (1 + FRAGMENTATION_MARGIN) * (facts.peak_now_bytes + facts.full_gradients_bytes)
    return needed <= context.available_bytes


def _without_state(context: RemedyContext, less: int, share: float) -> bool | None:
    """Return whether a smaller state is enough. State that is not allocated yet cannot free memory for this request."""
    facts = context.facts
    made = int(share * (facts.optimizer_bytes or 0))
    needed = (facts.used_bytes or 0) + (facts.asked_bytes or 0) - made
    if facts.phase != "optimizer" and needed > context.available_bytes:
        return False
    return _without(context, less)


def _without(context: RemedyContext, less: int) -> bool | None:
    needed = context.estimate.high_with(less=less)
    if needed is not None and needed <= context.available_bytes:
        return True
    return False if context.estimate.fixed_bytes - less > context.available_bytes else None
