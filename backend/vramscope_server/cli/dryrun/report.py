"""The answer of ``vramscope dryrun``, as JSON and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text
from typing_extensions import TypedDict

from vramscope_server.analysis.number_format import UNKNOWN, amount, count, steps, times
from vramscope_server.cli.client import how_to_start
from vramscope_server.cli.dryrun.cards import Card
from vramscope_server.cli.dryrun.training import Plan, Trial
from vramscope_server.cli.dryrun.verdict import (
    CONTEXT_HIGH_BYTES,
    CONTEXT_LOW_BYTES,
    Verdict,
    is_upper_bound,
    peak_allocated,
    peak_reserved,
    place_of,
    reads_of,
)
from vramscope_server.cli.tables import console, put
from vramscope_server.reports.run_facts import CATEGORY_NAMES

MOST_ASSUMED: Final = 11
"""Number of lines with assumptions that are printed."""
MOST_HARMLESS: Final = 4
"""Number of lines with harmless reads that are printed."""
CONTEXT_SOURCE: Final = "public reports, docs/dryrun.md"
WORDS: Final = {
    "shape": "size of a result",
    "largest": "size of a result",
    "balanced": "rows of experts",
    "branch": "truth value",
    "check": "check that a healthy training passes",
    "used_number": "number in use",
    "length": "length",
    "number": "number",
    "copy": "copy of a tensor",
    "used_copy": "copy in use",
    "print": "printed tensor",
}


class RankPeaks(TypedDict):
    """Peaks of one rank."""

    rank: int
    steps: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None


class ReadRow(TypedDict):
    """Reads of the device by one line."""

    place: str
    operation: str
    kind: str
    count: int
    assumed: str
    expression: str
    """Condition that a truth value decides; empty if it is not known."""


class DryRunAnswer(TypedDict):
    """Answer of ``vramscope dryrun --json``. Bytes; unknown is null."""

    answer: str
    exit_code: int
    reasons: list[str]
    assumptions: list[str]
    card: str
    card_bytes: int
    card_source: str
    torch: str
    steps: int
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_step: int | None
    peak_phase: str | None
    peak_categories: dict[str, int | None] | None
    left_bytes: int | None
    context_low_bytes: int
    context_high_bytes: int
    context_source: str
    cudnn_operations: int
    cudnn_tries_algorithms: bool
    """Whether ``torch.backends.cudnn.benchmark`` is on."""
    peak_allocated_high_bytes: int | None
    """With the largest workspaces of cuDNN; null if that was not run."""
    peak_reserved_high_bytes: int | None
    peak_allocated_low_bytes: int | None
    """With masks that select one element; null if that was not run."""
    is_upper_bound: bool
    """Whether masks selected every element, and nothing was left out that needs more."""
    ranks: list[RankPeaks]
    reads: list[ReadRow]
    run_id: str
    page: str | None


def answer(verdict: Verdict, card: Card, plan: Plan, torch: str) -> DryRunAnswer:
    """Collect everything that is printed."""
    trial = verdict.trial
    run: Any = trial.run or {}
    steps = {report.rank: report.steps for report in trial.reports}
    return {
        "answer": verdict.answer,
        "exit_code": verdict.exit_code,
        "reasons": list(verdict.reasons),
        "assumptions": list(verdict.assumptions),
        "card": card.name,
        "card_bytes": card.total_bytes,
        "card_source": card.source,
        "torch": torch,
        "steps": trial.steps,
        "peak_allocated_bytes": run.get("peak_allocated_bytes"),
        "peak_reserved_bytes": run.get("peak_reserved_bytes"),
        "peak_step": run.get("peak_step"),
        "peak_phase": run.get("peak_phase"),
        "peak_categories": run.get("peak_categories"),
        "left_bytes": verdict.left_bytes,
        "context_low_bytes": CONTEXT_LOW_BYTES,
        "context_high_bytes": CONTEXT_HIGH_BYTES,
        "context_source": CONTEXT_SOURCE,
        "cudnn_operations": sum(report.cudnn_plans for report in trial.reports),
        "cudnn_tries_algorithms": any(report.tries_algorithms for report in trial.reports),
        "peak_allocated_high_bytes": _highest(peak_allocated, verdict),
        "peak_reserved_high_bytes": _highest(peak_reserved, verdict),
        "peak_allocated_low_bytes": None if verdict.fewest is None else peak_allocated(verdict.fewest),
        "is_upper_bound": is_upper_bound(trial),
        "ranks": [_rank(row, steps) for row in run.get("ranks", [])],
        "reads": [
            {
                "place": place_of(read),
                "operation": read.operation,
                "kind": read.kind,
                "count": read.count,
                "assumed": read.assumed,
                "expression": read.expression,
            }
            for read in reads_of(trial)
        ],
        "run_id": trial.run_id,
        "page": None if trial.run is None else f"{plan.server}/runs/{trial.run_id}",
    }


def _rank(row: Any, steps: dict[int, int]) -> RankPeaks:
    return {
        "rank": row["rank"],
        "steps": steps.get(row["rank"], 0),
        "peak_allocated_bytes": row["peak_allocated_bytes"],
        "peak_reserved_bytes": row["peak_reserved_bytes"],
    }


def headline(found: DryRunAnswer) -> str:
    """Format the answer as one line."""
    card = f"{found['card']} ({amount(found['card_bytes'])})"
    if found["answer"] == "not trustworthy":
        return f"no {'trustworthy ' if found['page'] else ''}answer for {card}: {found['reasons'][0]}"
    text = f"{found['answer']} on {card}"
    if found["answer"] == "fits":
        text = f"fits on {card} in {steps(found['steps'])}: {_left(found)}"
    elif found["answer"] == "does not fit":
        needs = f"its tensors need {amount(found['peak_allocated_bytes'])}"
        text += f": {found['reasons'][0] if found['reasons'] else needs}"
    elif found["reasons"]:
        text += f": {found['reasons'][0]}"
    if found["assumptions"]:
        more = len(found["assumptions"]) - 1
        text += f"; assumed that {found['assumptions'][0]}" + (f" (and {count(more)} more, below)" if more else "")
    return text


def _highest(peak: Callable[[Trial], int | None], verdict: Verdict) -> int | None:
    """Return the upper end of a range. Blocks are reused differently, so that larger workspaces may need less."""
    peaks = [] if verdict.large is None else [peak(verdict.large), peak(verdict.trial)]
    return max((one for one in peaks if one is not None), default=None)


def _left(found: DryRunAnswer) -> str:
    left_bytes = found["left_bytes"]
    if left_bytes is None:
        return f"{UNKNOWN} what is left"
    if left_bytes < 0:
        return "only because PyTorch returned cached memory to the device"
    if found["cudnn_operations"] and found["peak_reserved_high_bytes"] is None:
        return f"{amount(left_bytes)} are left for the workspaces of cuDNN"
    return f"at least {amount(left_bytes)} are left"


def print_answer(found: DryRunAnswer, server_stopped: bool) -> None:
    """Print the answer as text."""
    out = console()
    style = {"fits": "bold green", "does not fit": "bold red"}.get(found["answer"], "bold yellow")
    out.print(Text(headline(found), style=style))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(found, server_stopped):
        table.add_row(name, Text(text))
    put(out, table)


def _rows(found: DryRunAnswer, server_stopped: bool) -> Iterator[tuple[str, str]]:
    if found["page"] is not None:
        yield "steps", f"{count(found['steps'])}, with PyTorch {found['torch']}; what comes later is not in the answer"
        yield from _memory(found)
    for name, texts in (
        ("doubt", found["reasons"][1:]),  # the first is in the headline
        ("assumed", _first(found["assumptions"], MOST_ASSUMED)),
        ("read as 0", _first(_harmless(found["reads"]), MOST_HARMLESS)),
    ):
        yield from ((name if not at else "", text) for at, text in enumerate(texts))
    if found["page"] is not None:
        hint = f" (start the server first: {how_to_start(found['page'])})"
        yield "run", found["page"] + (hint if server_stopped else "")


def _memory(found: DryRunAnswer) -> Iterator[tuple[str, str]]:
    where = "" if found["peak_step"] is None else f" in step {found['peak_step']}"
    phase = f", {found['peak_phase']}" if found["peak_phase"] else ""
    most = "at most " if found["is_upper_bound"] else ""
    yield "peak allocated", f"{most}{amount(found['peak_allocated_bytes'])}{where}{phase}"
    if found["peak_categories"]:
        yield "", ", ".join(_composition(found["peak_categories"], found["peak_allocated_bytes"]))
    yield "peak reserved", most + amount(found["peak_reserved_bytes"])
    if len(found["ranks"]) > 1:
        for row in found["ranks"]:
            peaks = f"{amount(row['peak_allocated_bytes'])} allocated, {amount(row['peak_reserved_bytes'])} reserved"
            yield f"rank {row['rank']}", peaks
    low, high = amount(found["context_low_bytes"]), amount(found["context_high_bytes"])
    yield "CUDA context", f"{low} to {high} in addition ({found['context_source']})"
    if len(found["ranks"]) > 1:
        yield "NCCL", "takes hundreds of MiB more, which are not counted here"
    if found["cudnn_operations"]:
        yield from _workspaces(found)


def _composition(categories: dict[str, int | None], peak_bytes: int | None) -> Iterator[str]:
    """Format the memory of each category, largest first, and that of the unknown ones together."""
    names = {name: CATEGORY_NAMES.get(name, name) for name in categories}
    known = {names[name]: value for name, value in categories.items() if value}
    yield from (f"{name} {amount(known[name])}" for name in sorted(known, key=lambda name: known[name], reverse=True))
    rest = (peak_bytes or 0) - sum(known.values())
    if rest > 0 and (unknown := [names[name] for name, value in categories.items() if value is None]):
        yield f"unknown {amount(rest)} ({', '.join(unknown)})"


def _workspaces(found: DryRunAnswer) -> Iterator[tuple[str, str]]:
    if found["peak_allocated_high_bytes"] is None:
        yield "cuDNN", "convolutions ran, and their workspaces are not counted: the peaks are lower bounds"
    else:
        allocated, reserved = found["peak_allocated_high_bytes"], found["peak_reserved_high_bytes"]
        text = f"with its largest workspaces {amount(allocated)} allocated, {amount(reserved)} reserved"
        yield "cuDNN", f"{text}; FFT and explicit GEMM need more"
    if found["cudnn_tries_algorithms"]:
        yield "", "cudnn.benchmark is on, and tries all workspaces for which memory is free: no upper bound is known"


def _harmless(reads: Sequence[ReadRow]) -> list[str]:
    """Format reads on which nothing depends."""
    return [_read(read) for read in reads if read["kind"] in ("number", "copy", "check")]


def _first(rows: Sequence[str], most: int) -> list[str]:
    """Return the first rows, and one with the number of those that are left out."""
    left_out = len(rows) - most
    return list(rows) if left_out < 2 else [*rows[:most], f"{count(left_out)} more lines (--json)"]


def _read(read: ReadRow) -> str:
    return f"{read['place']}: {WORDS[read['kind']]}, {times(read['count'])}"
