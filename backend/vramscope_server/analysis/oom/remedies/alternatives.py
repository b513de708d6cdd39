"""What was done in other runs, what is often done, and a larger card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from vramscope.oom_diagnosis.cause import amount
from vramscope_server.analysis.oom.remedies.remedy import Case, OtherRun, Remedy, advice

GIB: Final = 1 << 30
IN_A_STEP: Final = ("weights", "optimizer", "activations")
SPARE: Final = 0.02
"""of a card that is named as large enough"""


def of(case: Case) -> Iterator[Remedy]:
    """Measured runs, checkpointing where activations are the cause, a card."""
    for other in case.others:
        yield _measured(case, other)
    yield from _checkpointing(case)
    yield from _card(case)


def _measured(case: Case, other: OtherRun) -> Remedy:
    ratio = other.step_ratio
    needed = case.need.at()
    # Where something is kept, or asked for between two steps, another run may have come through because it was shorter.
    alike = case.cause in IN_A_STEP and case.facts.phase in ("forward", "backward", "optimizer")
    fits = other.peak_reserved_bytes <= case.room_bytes
    return Remedy(
        what=f"as in run {other.name}: {', '.join(other.chips) or 'without techniques'}",
        saves_bytes=None if needed is None else max(0, needed - other.peak_reserved_bytes),
        enough=fits if (alike and other.did_as_much) or not fits else None,
        source="measured",
        source_words=f"that run reserved {amount(other.peak_reserved_bytes)} at most"
        + ("" if other.did_as_much else "; whether its batches were as large is not known"),
        cost="as measured there" if ratio is None else f"a step took {ratio:.2f} times as long there, by the medians",
        rank=4,
        run_id=other.run_id,
    )


def _checkpointing(case: Case) -> Iterator[Remedy]:
    used = any(told.kind == "gradient_checkpointing" and told.observed for told in case.box.techniques)
    facts = case.facts
    serves = facts.phase == "eval" or facts.evaluates or facts.only_serves
    if case.cause != "activations" or serves or facts.thread is not None or used:
        return
    yield advice(
        "gradient checkpointing",
        "what it saves depends on where the checkpoints are: not known before it is tried",
        cost="one more forward: a step takes about 1.3 times as long",
        rank=4,
        technique="gradient_checkpointing",
    )


def _card(case: Case) -> Iterator[Remedy]:
    facts, needed = case.facts, case.need.at()
    if needed is None or facts.total_bytes is None or facts.whole_bytes is None:
        return
    card = int((needed + facts.total_bytes - facts.whole_bytes) * (1 + SPARE))
    if card <= facts.total_bytes:
        return
    card = -(-card // (GIB // 4)) * (GIB // 4)
    yield Remedy(
        what=f"a card of {amount(card)} or more",
        saves_bytes=card - facts.total_bytes,
        enough=True,
        source="formula",
        source_words=f"{case.need.words} (± {amount(case.need.error_bytes)})",
        cost="another card",
        rank=9,
        card_bytes=card,
    )
