"""Remedies: smaller batches or shorter inputs. They shrink the activations, but not weights, gradients and optimizer state.

rows that fit = (available / (1 + fragmentation margin) - fixed - constant) / ((working + its error) / rows)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from vramscope.oom_diagnosis.cause import CauseKind
from vramscope.oom_diagnosis.demand import waits_for_backward
from vramscope.oom_diagnosis.estimate import FRAGMENTATION_MARGIN
from vramscope.oom_diagnosis.rows_that_fit import rows_that_fit
from vramscope.protocol.number_format import amount
from vramscope_server.analysis.oom.remedies.remedy import Remedy, RemedyContext, advice

PARTS: Final = (2, 4, 8, 16, 32, 64)
WORTH_SAYING: Final = 0.05
"""Share of the activations from which on a part that may not shrink is mentioned."""


def remedies_for(context: RemedyContext) -> Iterator[Remedy]:
    """Yield micro-batches (as few as certainly fit, if that is known), shorter inputs, or an evaluation without graphs.

    A batch of one cannot be split, and the memory of an optimizer step does not depend on the batch.
    """
    facts, estimate = context.facts, context.estimate
    rows = facts.batch_size
    if facts.phase == "optimizer" or facts.thread is not None:
        return
    if waits_for_backward(facts):
        yield advice(
            f"call backward after each of the {facts.forwards} forwards, if the loss is the sum of theirs",
            "the graph of each forward lives until its backward; the gradients of a sum add up all the same",
            cost="none for such a sum",
            rank=1,
            technique="gradient_accumulation",
        )
    if facts.evaluates:
        yield advice(
            "torch.no_grad() around the evaluation",
            "no graph is kept then: only the input and the outputs of one or two layers are alive at a time",
            cost="none: an evaluation has no backward",
            rank=1,
        )
    elif facts.phase == "eval":
        yield from _trainer_predictions(context)
    if rows == 1 and (shorter := list(_shorter(context))):
        yield from shorter
    elif rows == 1:
        yield advice(
            "a shorter sequence or a smaller input: the batch size is 1 already",
            "how activations depend on the length is specific to the model; it is not known before it is tried",
            cost="fewer tokens a step",
            rank=4,
            technique="batch",
        )
    elif facts.evaluates or facts.phase == "eval":
        yield _remedy("smaller batches in the evaluation", context, rank=3, technique="batch")
    elif facts.phase != "forward" and (facts.is_inference_only or (facts.phase == "other" and not facts.step)):
        # If no forward pass was observed, as under torch.func, the number of rows is unknown.
        if context.kind is CauseKind.ACTIVATIONS:
            yield _remedy("fewer sequences or rows at a time, or shorter ones", context, rank=3, technique="batch")
    elif estimate.working_bytes is None or estimate.is_crude:
        if repeated := _as_many_rows_as_before(context):
            yield repeated
        elif facts.phase in ("forward", None) and facts.parameters_bytes:
            yield _split(context, _first_guess(context), rows)
    else:
        yield from _shorter(context)
        for parts in PARTS:
            if rows is not None and parts > rows:
                break
            share = 1 / parts if rows is None else -(-rows // parts) / rows
            if estimate.fits(context.available_bytes, share):
                rough = int(estimate.working_bytes * (1 - share))
                saves = rough if rough < context.least_bytes else estimate.saved_by(share)
                yield _split(context, parts, rows, saves=saves, enough=True)
                break
        else:
            if repeated := _as_many_rows_as_before(context):
                yield repeated


def _as_many_rows_as_before(context: RemedyContext) -> Remedy | None:
    """Return micro-batches of no more rows than an earlier step had; None where none shows that these fit."""
    facts, rows = context.facts, context.facts.batch_size
    most = rows_that_fit(facts, context.estimate, context.available_bytes)
    if most is None or rows is None or (parts := -(-rows // most)) > PARTS[-1]:
        return None
    words = f"a step of {most:,} rows was complete, and fits beside what is allocated now"
    return replace(_split(context, parts, rows, enough=True), source_words=words)


def _first_guess(context: RemedyContext) -> int:
    """Return a number of micro-batches to try first if the memory for the rest of the forward pass is unknown.

    With it, what was allocated and requested would have fitted.
    """
    estimate, rows = context.estimate, context.facts.batch_size
    least = max(0, estimate.low_bytes - estimate.fixed_bytes - estimate.constant_bytes)
    working = least if estimate.working_bytes is None else estimate.working_bytes
    left = context.available_bytes / (1 + FRAGMENTATION_MARGIN) - estimate.fixed_bytes - estimate.constant_bytes
    few = [parts for parts in PARTS if rows is None or parts <= rows] or [PARTS[0]]
    return next((parts for parts in few if working / parts <= left), few[-1] if working else few[0])


def _shorter(context: RemedyContext) -> Iterator[Remedy]:
    """Yield the length that fits, if the input is longer than the one before and has the same number of rows."""
    facts, estimate = context.facts, context.estimate
    now, before = facts.input_shape, facts.input_shape_before
    share = estimate.largest_share(context.available_bytes)
    if not 2 <= len(now) == len(before) or now[0] != before[0] or now[2:] != before[2:] or now[1] <= before[1]:
        return
    # Memory grows at least in proportion to the length, so a shorter input saves at least its share.
    fits = int((share or 0.0) * now[1])
    known = before[1] <= fits < now[1]
    length = fits if known else before[1]
    yield Remedy(
        what=f"inputs of a length of {length:,} instead of {now[1]:,} at most: cut the long ones, or group them by length",
        saves_bytes=estimate.saved_by(fits / now[1]) if known else None,
        enough=True if known else None,
        source="formula" if known else "advice",
        source_words=context.basis_with_error if known else "the last step had no longer ones, and fitted",
        cost="tokens that are cut are not trained on",
        rank=4,
        technique="batch",
    )


def _trainer_predictions(context: RemedyContext) -> Iterator[Remedy]:
    """Yield a remedy for transformers' Trainer, which by default keeps all predictions of an evaluation on the device."""
    if context.facts.growing_tensor_advice:
        return  # another remedy has the same advice
    loops = (frame for frame in context.record.stack if frame.function.endswith("evaluation_loop"))
    if any("transformers" in frame.file for frame in loops):
        yield advice(
            "TrainingArguments(eval_accumulation_steps=..) to move predictions to the host as they come; or "
            "prediction_loss_only=True, or preprocess_logits_for_metrics=..",
            "Trainer keeps the predictions of a whole evaluation on the device; their size is not known before it is tried",
            cost="copies to the host",
            rank=1,
        )


def _split(
    context: RemedyContext, parts: int, rows: int | None, *, saves: int | None = None, enough: bool | None = None
) -> Remedy:
    each = None if rows is None else -(-rows // parts)
    size = "" if each is None else f" of {each:,} {'row' if each == 1 else 'rows'}"
    whole = "the whole batch" if rows is None else f"{rows:,} rows"
    what = f"{parts} micro-batches{size} instead of {whole}, with accumulated gradients"
    return _remedy(what, context, saves=saves, enough=enough, technique="gradient_accumulation", parts=parts)


def _remedy(
    what: str,
    context: RemedyContext,
    *,
    saves: int | None = None,
    enough: bool | None = None,
    rank: int = 3,
    technique: str,
    parts: int | None = None,
) -> Remedy:
    estimate, rows = context.estimate, context.facts.batch_size
    has_error = estimate.working_bytes is not None and not estimate.is_crude
    words = (
        f"activations are proportional to the batch; {context.basis_with_error if has_error else context.basis_words}"
    )
    if has_error and estimate.unscaled_bytes > WORTH_SAYING * (estimate.working_bytes or 0):
        words += f"; {amount(estimate.unscaled_bytes)} may be computed from the weights, and stay"
    share = estimate.largest_share(context.available_bytes)
    if enough and rows is not None and share is not None and share * rows >= 1:
        most = int(share * rows)
        words += f"; {most:,} {'row fits' if most == 1 else 'rows fit'} by this estimate"
    return Remedy(
        what=what,
        saves_bytes=saves,
        enough=enough,
        source="formula",
        source_words=words,
        cost="slightly slower steps if the GPU was fully used",
        rank=rank,
        technique=technique,
        micro_batches=parts,
    )
