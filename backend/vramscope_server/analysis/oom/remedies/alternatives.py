"""Remedies: settings of other runs, gradient checkpointing, sparse gradients, and a larger device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.protocol.number_format import amount
from vramscope_server.analysis.oom.remedies.card_sizes import smallest_card
from vramscope_server.analysis.oom.remedies.remedy import OtherRun, Remedy, RemedyContext, advice

GIB: Final = 1 << 30
IN_A_STEP: Final = (CauseKind.WEIGHTS, CauseKind.OPTIMIZER, CauseKind.ACTIVATIONS, CauseKind.DATA)
SPARE: Final = 0.02
"""Share of its memory that must stay free on a device that counts as large enough."""


def remedies_for(context: RemedyContext) -> Iterator[Remedy]:
    """Yield the remedies of this module."""
    for other in context.others:
        yield _measured(context, other)
    yield from _checkpointing(context)
    yield from _sparse_gradient(context)
    yield from _device(context)


def _measured(context: RemedyContext, other: OtherRun) -> Remedy:
    ratio = other.step_ratio
    needed = context.estimate.high_bytes
    # After a leak, or a request between two steps, another run may have finished because it was shorter.
    comparable = context.kind in IN_A_STEP and context.facts.phase in ("forward", "backward", "optimizer")
    fits = other.peak_reserved_bytes <= context.available_bytes
    return Remedy(
        what=f"as in run {other.name}: {', '.join(other.chips) or 'without techniques'}",
        saves_bytes=None if needed is None else max(0, needed - other.peak_reserved_bytes),
        enough=fits if (comparable and other.did_as_much) or not fits else None,
        source="measured",
        source_words=f"that run reserved at most {amount(other.peak_reserved_bytes)}"
        + ("" if other.did_as_much else "; whether its batches were as large is not known"),
        cost="as measured there" if ratio is None else f"a step took {ratio:.2f} times as long there (medians)",
        rank=4,
        run_id=other.run_id,
    )


def _checkpointing(context: RemedyContext) -> Iterator[Remedy]:
    used = any(one.kind == "gradient_checkpointing" and one.observed for one in context.record.techniques)
    facts = context.facts
    is_inference = facts.phase == "eval" or facts.evaluates or facts.is_inference_only
    if context.kind is not CauseKind.ACTIVATIONS or is_inference or facts.thread is not None or used:
        return
    yield advice(
        "gradient checkpointing",
        "the saving depends on the position of the checkpoints; it is not known before it is tried",
        cost="one more forward: a step takes about 1.3 times as long",
        rank=4,
        technique="gradient_checkpointing",
    )


def _sparse_gradient(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy if backward was allocating the gradient of an embedding, which is as large as its table."""
    facts = context.facts
    if facts.phase != "backward" or not facts.asked_bytes or not (context.record.node or "").startswith("Embedding"):
        return
    yield Remedy(
        what=f"sparse=True for the embedding{f' {facts.module}' if facts.module else ''}: its gradient then has the rows of the "
        "batch only",
        saves_bytes=facts.asked_bytes,
        enough=context.estimate.fits(context.available_bytes, less=facts.asked_bytes),
        source="formula",
        source_words="a dense gradient is as large as the table; the rows of the batch are not counted",
        cost="an optimizer for sparse gradients: SGD, Adagrad or SparseAdam",
        rank=3,
    )


def _device(context: RemedyContext) -> Iterator[Remedy]:
    facts, needed = context.facts, context.estimate.high_bytes
    whole = facts.available_without_limit_bytes
    if needed is None or facts.total_bytes is None or whole is None:
        return
    least = needed + facts.total_bytes - whole
    if int(least * (1 + SPARE)) <= facts.total_bytes:
        return
    # In later steps each free block may be smaller than such a request.
    pieces = 0 if facts.expandable else facts.asked_bytes or 0
    size = int((least + pieces) * (1 + SPARE))
    if facts.limit_bytes is not None and facts.limit_bytes < whole:  # a fraction, which a larger device has too
        size = max(size, int((needed + pieces) * (1 + SPARE) * facts.total_bytes / facts.limit_bytes))
    size = -(-size // (GIB // 4)) * (GIB // 4)
    card = smallest_card(size)
    yield Remedy(
        what=f"a device with at least {amount(size)}" + (f", such as {card.name} ({card.label})" if card else ""),
        saves_bytes=size - facts.total_bytes,
        enough=True,
        source="formula",
        source_words=context.basis_with_error,
        cost="another device",
        rank=9,
        card_bytes=size,
    )
