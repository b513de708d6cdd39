"""A dry run for several cards: one run for each compute capability, on a card with room for everything."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.text import Text
from typing_extensions import TypedDict

from vramscope_server.analysis.number_format import amount, steps
from vramscope_server.cli.dryrun.cards import Card
from vramscope_server.cli.dryrun.training import Plan, Trial, tell, train
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    LARGE_BYTES,
    Answer,
    Verdict,
    is_certainly_too_large,
    left_on,
    runs_convolutions,
    verdict,
    with_workspaces,
)
from vramscope_server.cli.exit_codes import NOT_TRUSTWORTHY
from vramscope_server.cli.tables import Column, console, print_table

TOO_CLOSE: Final = "its tensors fit, but not all memory that PyTorch reserved"
COLUMNS: Final = (
    Column("CARD"),
    Column("MEMORY", number=True),
    Column("ANSWER"),
    Column("LEFT", number=True),
    Column("PEAK ALLOCATED", number=True),
    Column("PEAK RESERVED", number=True),
)


class CardRow(TypedDict):
    """Answer for one of several cards, as ``--json`` prints it. Bytes; unknown is null."""

    card: str
    card_bytes: int
    answer: str
    exit_code: int
    reasons: list[str]
    assumptions: list[str]
    left_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    run_id: str


@dataclass(frozen=True)
class CardVerdict:
    """Verdict for one of several cards."""

    card: Card
    verdict: Verdict


def judge_all(plan: Plan, cards: Iterable[Card]) -> list[CardVerdict]:
    """Run the training once for each capability, and compare its peaks with each card of it."""
    found = []
    by_capability = sorted(cards, key=lambda card: (card.capability, card.total_bytes))
    groups = [list(group) for _, group in itertools.groupby(by_capability, key=lambda card: card.capability)]
    for number, alike in enumerate(groups, 1):
        names = ", ".join(card.key for card in alike)
        tell(f"run {number} of {len(groups)}: {steps(plan.steps)} for {names}, with every computed value 0")
        trial = train(plan, alike[-1], LARGE_BYTES, CONTEXT_HIGH_BYTES)
        verdicts = [verdict(compared(card, trial), trial, [trial], card, TOO_CLOSE) for card in alike]
        if runs_convolutions(trial) and any(one.answer == "fits" for one in verdicts):
            tell(f"convolutions ran; running again for {names} with the largest workspaces of cuDNN")
            large = train(
                replace(plan, has_large_workspaces=True, label="largest workspaces"),
                alike[-1],
                LARGE_BYTES,
                CONTEXT_HIGH_BYTES,
            )
            verdicts = [
                with_workspaces(one, large, card) if one.answer == "fits" else one
                for one, card in zip(verdicts, alike, strict=True)
            ]
        found += [CardVerdict(card, one) for card, one in zip(alike, verdicts, strict=True)]
    return sorted(found, key=lambda one: one.card.total_bytes)


def compared(card: Card, trial: Trial) -> Answer:
    """Compare peaks with a card. What lies between depends on what PyTorch could return to the device."""
    left = left_on(card, trial)
    if left is not None and left >= 0:
        return "fits"
    return "does not fit" if is_certainly_too_large(card, trial) else "too close to say"


def rows(found: Sequence[CardVerdict]) -> list[CardRow]:
    """Collect the answers."""
    return [
        {
            "card": one.card.name,
            "card_bytes": one.card.total_bytes,
            "answer": one.verdict.answer,
            "exit_code": one.verdict.exit_code,
            "reasons": list(one.verdict.reasons),
            "assumptions": list(one.verdict.assumptions),
            "left_bytes": one.verdict.left_bytes,
            "peak_allocated_bytes": None if (run := one.verdict.trial.run) is None else run["peak_allocated_bytes"],
            "peak_reserved_bytes": None if run is None else run["peak_reserved_bytes"],
            "run_id": one.verdict.trial.run_id,
        }
        for one in found
    ]


def exit_code(found: Sequence[CardVerdict]) -> int:
    """0: there is an answer for each card; 5: none can be trusted."""
    return NOT_TRUSTWORTHY if all(one.verdict.exit_code == NOT_TRUSTWORTHY for one in found) else 0


def print_rows(answers: Sequence[CardRow]) -> None:
    """Print a table, the smallest card first, and below it what was assumed."""
    out = console()
    styles = {"fits": "green", "does not fit": "red"}
    print_table(
        out,
        COLUMNS,
        [
            [
                row["card"],
                amount(row["card_bytes"]),
                Text(row["answer"], style=styles.get(row["answer"], "yellow")),
                "" if row["left_bytes"] is None else amount(row["left_bytes"]),
                amount(row["peak_allocated_bytes"]),
                amount(row["peak_reserved_bytes"]),
            ]
            for row in answers
        ],
    )
    for title, texts in (
        (
            "doubt",
            dict.fromkeys(text for row in answers if row["answer"] == "not trustworthy" for text in row["reasons"]),
        ),
        ("assumed", dict.fromkeys(text for row in answers for text in row["assumptions"])),
    ):
        for text in texts:
            out.print(Text(f"{title}: {text}"))
    if any(row["answer"] == "too close to say" for row in answers):
        out.print(Text("too close to say: a dry run on that card alone may tell"))
