"""The answer of ``vramscope dryrun --try``, as JSON and as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.text import Text
from typing_extensions import TypedDict

from vramscope_server.analysis.number_format import amount, count
from vramscope_server.cli.dryrun.attempts import Attempt, Attempts
from vramscope_server.cli.dryrun.cards import Card
from vramscope_server.cli.dryrun.largest import Largest
from vramscope_server.cli.dryrun.training import Trial
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    Verdict,
    peak_allocated,
    peak_reserved,
)
from vramscope_server.cli.exit_codes import CHECK_FAILED, NOT_TRUSTWORTHY
from vramscope_server.cli.tables import Column, console, print_table

COLUMNS: Final = (
    Column("CHANGE"),
    Column("PEAK ALLOCATED", number=True),
    Column("SAVED", number=True),
    Column("PEAK RESERVED", number=True),
    Column("SAVED", number=True),
    Column("WORK", number=True),
    Column("ANSWER"),
    Column("COST", needed=1),
)
STYLES: Final = {"fits": "green", "does not fit": "red"}


class AttemptRow(TypedDict):
    """The training with some changes, as ``--json`` prints it. Bytes; unknown is null."""

    changes: list[str]
    state: str
    reason: str
    answer: str | None
    reasons: list[str]
    assumptions: list[str]
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    saved_allocated_bytes: int | None
    saved_reserved_bytes: int | None
    flops: int | None
    """Floating-point operations of a step of the rank with most, in products, convolutions and attention."""
    work_ratio: float | None
    """The same as a multiple of those without a change."""
    costs: list[str]
    lines: list[str]
    run_id: str | None


class LargestRow(TypedDict):
    """The largest value of an argument that fits. Unknown is null."""

    option: str
    present: int
    largest: int | None
    peak_reserved_bytes: int | None
    too_large: int | None
    is_close: bool
    """Whether ``too_large`` is too close to say."""
    reason: str


class AttemptsAnswer(TypedDict):
    """Answer of ``vramscope dryrun --try --json``."""

    answer: str
    exit_code: int
    card: str
    card_bytes: int
    context_low_bytes: int
    context_high_bytes: int
    cudnn_operations: int
    plain: AttemptRow
    alone: list[AttemptRow]
    together: list[AttemptRow]
    smallest: AttemptRow | None
    largest: list[LargestRow]


def answer(found: Attempts, card: Card) -> AttemptsAnswer:
    """Collect everything that is printed."""
    plain = Attempt([], "ran", "", verdict=found.plain)

    def row(one: Attempt) -> AttemptRow:
        return _row(one, found.plain)

    return {
        "answer": found.plain.answer,
        "exit_code": exit_code(found),
        "card": card.name,
        "card_bytes": card.total_bytes,
        "context_low_bytes": CONTEXT_LOW_BYTES,
        "context_high_bytes": CONTEXT_HIGH_BYTES,
        "cudnn_operations": sum(report.cudnn_plans for report in found.plain.trial.reports),
        "plain": row(plain),
        "alone": [row(one) for one in found.alone],
        "together": [row(one) for one in found.together],
        "smallest": None if found.smallest is None else row(found.smallest),
        "largest": [largest_row(one) for one in found.largest],
    }


def exit_code(found: Attempts) -> int:
    """0: it fits, as it is or with a change; 1: it does not; 5: the plain run cannot be trusted."""
    if found.plain.answer == "not trustworthy":
        return NOT_TRUSTWORTHY
    return 0 if found.plain.answer == "fits" or found.smallest is not None else CHECK_FAILED


def _row(one: Attempt, plain: Verdict) -> AttemptRow:
    trial = None if one.verdict is None or one.state == "failed" else one.verdict.trial
    allocated = None if trial is None else peak_allocated(trial)
    reserved = None if trial is None else peak_reserved(trial)
    flops, plain_flops = None if trial is None else _flops(trial), _flops(plain.trial)
    own = [change.assumption for change in one.changes if change.assumption and one.state == "ran"]
    return {
        "changes": [change.title for change in one.changes],
        "state": one.state,
        "reason": one.reason,
        "answer": None if trial is None or one.verdict is None else one.verdict.answer,
        "reasons": [] if one.verdict is None else list(one.verdict.reasons),
        "assumptions": own + ([] if one.verdict is None else list(one.verdict.assumptions)),
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "saved_allocated_bytes": _saved(peak_allocated(plain.trial), allocated),
        "saved_reserved_bytes": _saved(peak_reserved(plain.trial), reserved),
        "flops": flops,
        "work_ratio": None if flops is None or not plain_flops else round(flops / plain_flops, 4),
        "costs": [change.cost for change in one.changes],
        "lines": list(one.lines),
        "run_id": None if one.verdict is None else one.verdict.trial.run_id,
    }


def _flops(trial: Trial) -> int | None:
    """Return the operations of the rank with most; None if they are not known of each."""
    known = [report.flops for report in trial.reports if report.flops is not None]
    return max(known) if known and len(known) == len(trial.reports) else None


def largest_row(one: Largest) -> LargestRow:
    """Return what was found about an argument, as the answer has it."""
    return {
        "option": one.argument.option,
        "present": one.argument.value,
        "largest": one.largest,
        "peak_reserved_bytes": one.peak_reserved_bytes,
        "too_large": one.too_large,
        "is_close": one.is_close,
        "reason": one.reason,
    }


def largest_line(row: LargestRow) -> str:
    """Return the same as one line of text."""
    if row["largest"] is None:
        text = f"no {row['option']} that fits was found"
    else:
        text = f"largest {row['option']} that fits: {count(row['largest'])}"
        text += f", peak reserved {amount(row['peak_reserved_bytes'])}"
    if row["too_large"] is not None:
        text += f"; {count(row['too_large'])} {'is too close to say' if row['is_close'] else 'does not fit'}"
    return f"{text} ({row['reason']})" if row["reason"] else text


def _saved(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else before - after


def headline(found: AttemptsAnswer) -> str:
    """Format the answer as one line."""
    card = f"{found['card']} ({amount(found['card_bytes'])})"
    if found["answer"] == "not trustworthy":
        return f"no trustworthy answer for {card}: {found['plain']['reasons'][0]}"
    if found["answer"] == "fits":
        return f"fits on {card} without a change"
    if found["smallest"] is not None:
        return f"{found['answer']} on {card}; the smallest change that fits: {title_of(found['smallest'])}"
    if not found["alone"]:
        return f"{found['answer']} on {card}; no change was tried, because no step of the training is known"
    return f"{found['answer']} on {card}; none of these changes fits"


def print_answer(found: AttemptsAnswer) -> None:
    """Print the headline, the table, the lines to write, and what was assumed."""
    out = console()
    style = "bold green" if found["exit_code"] == 0 else "bold yellow"
    out.print(Text(headline(found), style=style if found["exit_code"] != CHECK_FAILED else "bold red"))
    rows = [found["plain"], *found["alone"], *found["together"]]
    if not found["alone"]:
        return
    marks = marks_of(rows)
    names = short_names(rows)
    print_table(out, COLUMNS, [cells(row, marks, name) for row, name in zip(rows, names, strict=True)])
    for row, name in zip(rows, names, strict=True):
        if name != title_of(row):
            out.print(Text(f"{name}: {title_of(row)}"))
    if found["smallest"] is not None:
        out.print(Text(f"\nto write for {title_of(found['smallest'])}:"))
        for line in found["smallest"]["lines"]:
            out.print(Text(f"    {line}"))
    for size in found["largest"]:
        out.print(Text(largest_line(size)))
    for text, mark in marks.items():
        out.print(Text(f"[{mark}] assumed: {text}"))
    if found["cudnn_operations"]:
        out.print(
            Text(
                "Convolutions ran. Workspaces of cuDNN are not counted, so that all peaks are lower bounds.",
                style="dim",
            )
        )
    if found["plain"]["flops"] is not None:
        out.print(
            Text("WORK: floating-point operations of a step, as a multiple of those without a change.", style="dim")
        )
    low, high = amount(found["context_low_bytes"]), amount(found["context_high_bytes"])
    out.print(Text(f"The CUDA context takes {low} to {high} in addition.", style="dim"))


def title_of(row: AttemptRow) -> str:
    """Name the changes of a row."""
    return " + ".join(row["changes"]) or "no change"


def short_names(rows: Sequence[AttemptRow]) -> list[str]:
    """Names for the table: sets of changes are numbered, and listed below it."""
    names, sets = [], 0
    for row in rows:
        sets += len(row["changes"]) > 1
        names.append(f"together {sets}" if len(row["changes"]) > 1 else title_of(row))
    return names


def marks_of(rows: Sequence[AttemptRow]) -> dict[str, int]:
    """Number what the rows assume."""
    texts = dict.fromkeys(text for row in rows for text in row["assumptions"])
    return {text: number for number, text in enumerate(texts, 1)}


def cells(row: AttemptRow, marks: dict[str, int], name: str) -> list[str | Text]:
    """Format a row of the table."""
    title = name + "".join(f" [{marks[text]}]" for text in row["assumptions"])
    if row["answer"] is None:
        return [title, "", "", "", "", "", row["state"], row["reason"]]
    return [
        title,
        amount(row["peak_allocated_bytes"]),
        _saving(row["saved_allocated_bytes"], row["changes"]),
        amount(row["peak_reserved_bytes"]),
        _saving(row["saved_reserved_bytes"], row["changes"]),
        "" if row["work_ratio"] is None else f"{row['work_ratio']:.2f}",
        Text(row["answer"], style=STYLES.get(row["answer"], "yellow")),
        row["costs"][0] if len(row["costs"]) == 1 else "",
    ]


def _saving(saved_bytes: int | None, changes: Sequence[str]) -> str:
    if not changes:
        return ""
    if saved_bytes is None:
        return "unknown"
    return "none" if not saved_bytes else amount(saved_bytes) if saved_bytes > 0 else f"{amount(-saved_bytes)} more"
