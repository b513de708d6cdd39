"""A smaller batch: activations go with it, weights and their state do not.

rows that fit = (room / (1 + loose pieces) - fixed - beside) / ((working + its error) / rows)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramscope.oom_diagnosis.cause import amount
from vramscope.oom_diagnosis.demand import PIECES, waits_for_backward
from vramscope_server.analysis.oom.remedies.remedy import Case, Remedy, advice

PARTS: Final = (2, 4, 8, 16, 32, 64)


def of(case: Case) -> Iterator[Remedy]:
    """Micro-batches, as few as fit for sure where that is known. A batch of one cannot be parted, the optimizer knows none."""
    facts, need = case.facts, case.need
    rows = facts.batch_size
    if facts.phase == "optimizer" or facts.thread is not None:
        return
    if waits_for_backward(facts):
        yield advice(
            f"backward behind each of the {facts.forwards} forwards, where the loss is the sum of theirs",
            "the graph of each forward lives until its backward; of a sum the gradients add up all the same",
            cost="none, where it is such a sum",
            rank=4,
            technique="gradient_accumulation",
        )
    if facts.evaluates:
        yield advice(
            "torch.no_grad() around the evaluation",
            "no graph is kept then: of a forward live its input and the outputs of a layer or two at a time",
            cost="none: an evaluation has no backward",
            rank=1,
        )
    elif facts.phase == "eval":
        yield from _gathered_by_trainer(case)
    if rows == 1 and (shorter := list(_shorter(case))):
        yield from shorter
    elif rows == 1:
        yield advice(
            "a shorter sequence, or a smaller input: the batch is 1 already",
            "how activations go with the length depends on the model: not known before it is tried",
            cost="less to learn from in a step",
            rank=4,
            technique="batch",
        )
    elif facts.evaluates or facts.phase == "eval":
        yield _remedy("smaller batches in the evaluation", case, rank=3, technique="batch")
    elif facts.phase != "forward" and (facts.only_serves or (facts.phase == "other" and not facts.step)):
        # (Where no forward was heard, as under torch.func, the rows are not known.)
        if case.cause == "activations":
            yield _remedy("fewer sequences or rows at a time, or shorter ones", case, rank=3, technique="batch")
    elif need.working_bytes is None or need.crude:
        if facts.phase in ("forward", None) and facts.parameters_bytes:
            yield _parted(case, _guessed(case), rows)
    else:
        yield from _shorter(case)
        for parts in PARTS:
            if rows is not None and parts > rows:
                break
            share = 1 / parts if rows is None else -(-rows // parts) / rows
            if need.fits(case.room_bytes, share):
                yield _parted(case, parts, rows, saves=int(need.working_bytes * (1 - share)), enough=True)
                break


def _guessed(case: Case) -> int:
    """Parts to begin with, where nobody knows how much was to come."""
    need, rows = case.need, case.facts.batch_size
    working = need.working_bytes or 0
    left = case.room_bytes / (1 + PIECES) - need.fixed_bytes - need.beside_bytes
    few = [parts for parts in PARTS if rows is None or parts <= rows] or [PARTS[0]]
    return next((parts for parts in few if working / parts <= left), few[-1] if working else few[0])


def _shorter(case: Case) -> Iterator[Remedy]:
    """Of as many rows of a greater length than before: so many tokens fit."""
    facts, need = case.facts, case.need
    now, before = facts.input_shape, facts.input_shape_before
    share = need.largest_share(case.room_bytes)
    if len(now) < 2 or now[0] != before[0] or now[2:] != before[2:] or now[1] <= before[1]:
        return
    # (With the length goes no less than in proportion: so much shorter it makes at most so much less.)
    fits = int((share or 0.0) * now[1])
    known = before[1] <= fits < now[1]
    length = fits if known else before[1]
    yield Remedy(
        what=f"inputs of a length of {length:,} instead of {now[1]:,} at most: cut the long ones, or group them by length",
        saves_bytes=int((need.working_bytes or 0) * (1 - fits / now[1])) if known else None,
        enough=True if known else None,
        source="formula" if known else "advice",
        source_words=f"{need.words} (± {amount(need.error_bytes)})"
        if known
        else "the last step had no longer ones, and fitted",
        cost="what is cut off is not learned from",
        rank=4,
        technique="batch",
    )


def _gathered_by_trainer(case: Case) -> Iterator[Remedy]:
    """transformers' Trainer keeps the predictions of a whole evaluation on the card, unless it is told otherwise."""
    if case.facts.lengthened:
        return  # it is named already, with the same advice
    loops = (frame for frame in case.box.stack if frame.function.endswith("evaluation_loop"))
    if any("transformers" in frame.file for frame in loops):
        yield advice(
            "TrainingArguments(eval_accumulation_steps=..), so that predictions go to the host as they come; or "
            "prediction_loss_only=True, or preprocess_logits_for_metrics=..",
            "Trainer keeps the predictions of a whole evaluation on the card: not known before it is tried",
            cost="copies to the host",
            rank=1,
        )


def _parted(
    case: Case, parts: int, rows: int | None, *, saves: int | None = None, enough: bool | None = None
) -> Remedy:
    size = f"1/{parts}" if rows is None else f"{-(-rows // parts):,} instead of {rows:,} rows"
    what = f"micro-batches of {size}, accumulated over {parts}: the effective batch stays"
    return _remedy(what, case, saves=saves, enough=enough, technique="gradient_accumulation", parts=parts)


def _remedy(
    what: str,
    case: Case,
    *,
    saves: int | None = None,
    enough: bool | None = None,
    rank: int = 3,
    technique: str,
    parts: int | None = None,
) -> Remedy:
    need, rows = case.need, case.facts.batch_size
    words = f"activations go with the batch; {need.words}"
    if need.working_bytes is not None and not need.crude:
        words += f" (± {amount(need.error_bytes)})"
    share = need.largest_share(case.room_bytes)
    if enough and rows is not None and share is not None and share * rows >= 1:
        words += f"; {int(share * rows):,} rows fit by it"
    return Remedy(
        what=what,
        saves_bytes=saves,
        enough=enough,
        source="formula",
        source_words=words,
        cost="a little time, where the card was well used",
        rank=rank,
        technique=technique,
        micro_batches=parts,
    )
