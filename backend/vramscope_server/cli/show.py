"""``vramscope show RUN``: one run, its peak and its memory breakdown. The demo ends with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope.protocol import series
from vramscope_server.analysis.number_format import UNKNOWN, amount, percent
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.next_change import NextChange
from vramscope_server.answers.other_processes import OtherProcessOfRun
from vramscope_server.answers.run_detail import CategoryMemory, RunAnswer, RunInFull
from vramscope_server.answers.steps import Step
from vramscope_server.cli.client import Failure, address, ask, path_of, print_json, source_of
from vramscope_server.cli.format import STATE_STYLE, ago, plain, process_name
from vramscope_server.cli.tables import console, put
from vramscope_server.reports.run_facts import CATEGORY_NAMES, advice_of, facts_of
from vramscope_server.reports.source import newest_anatomy

_BAR: Final = 32
_BESIDE_BAR: Final = 50
"""Characters before a bar."""
_SEARCHED_STEPS: Final = 2000
MOST_OTHERS: Final = 4
"""Maximum number of other processes that are listed."""


def show(server: str, as_json: bool, run: str) -> None:
    """Print the summary, or the API's answer as JSON. Raises client.Failure."""
    detail: RunAnswer = ask(server, f"/runs/{path_of(server, run)}")
    if as_json:
        print_json(detail)
    else:
        try:
            recorded = newest_anatomy(source_of(server), detail)
            advice = advice_of(detail, recorded)
        except Failure as failure:
            recorded, advice = None, [f"{UNKNOWN}: {failure}"]
        print_summary(
            console(),
            detail,
            _split_step(server, detail),
            address(server),
            advice,
            _workspaces(recorded),
            ask(server, f"/runs/{detail['run_id']}/leaks"),
            ask(server, f"/runs/{detail['run_id']}/next-change"),
        )


def print_summary(
    out: Console,
    run: RunInFull,
    split: Step | None,
    server: str,
    advice: Sequence[str] = (),
    workspaces_bytes: int = 0,
    leaks: LeakReport | None = None,
    change: NextChange | None = None,
) -> None:
    """Print an answer of ``GET /runs/RUN``.

    split              highest step with a known breakdown, if the peak has none
    advice             sentences on how to lower the peak
    workspaces_bytes   cuBLAS workspaces in a recording, for runs in which they are part of "other"
    leaks              answer of ``GET /runs/RUN/leaks``
    change             answer of ``GET /runs/RUN/next-change``
    """
    out.print(
        Text.assemble(
            (plain(run["name"]), "bold"),
            "  ",
            (run["state"], STATE_STYLE.get(run["state"], "default")),
            (f"  in project {plain(run['project'])}, started {ago(run['started_seconds'])}", "dim"),
        )
    )
    if run["error_type"]:
        out.print(Text(f"{plain(run['error_type'])}: {plain(run['error_line'] or '')}", style="red"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts_of(run, leaks):
        table.add_row(name, Text(value))
        if name == "peak allocated" and run["peak_categories"]:
            table.add_row(
                "",
                _composition(
                    _by_name(run["peak_categories"]), run["peak_allocated_bytes"], out.width, workspaces_bytes
                ),
            )
        elif name == "peak allocated" and split is not None:
            table.add_row("", Text(_instead(run, split), style="dim"))
            table.add_row(
                "",
                _composition(
                    _by_name(split["peak_categories"]), split["peak_allocated_bytes"], out.width, workspaces_bytes
                ),
            )
    others = run.get("other_processes") or []
    for number, other in enumerate(others[:MOST_OTHERS]):
        table.add_row("" if number else "other processes", Text(_other_process(run, other)))
    if len(others) > MOST_OTHERS:
        table.add_row("", Text(f"{len(others) - MOST_OTHERS} more (see --json)", style="dim"))
    if change is not None and (first := change_in_words(change)):
        table.add_row("try first", Text(plain(first), style="bold"))
    for number, sentence in enumerate(advice):
        table.add_row("" if number else "advice", Text(plain(sentence)))
    put(out, table)
    out.print(Text(f"{server}/runs/{run['run_id']}", style="cyan"))


def _other_process(run: RunInFull, other: OtherProcessOfRun) -> str:
    """Another process, and where there are several devices that of the process."""
    name = process_name(other)
    if other["rank_of_run"] is not None:
        name = f"rank {other['rank_of_run']} of this run, {name}"
    if sum(len(rank["devices"]) for rank in run["ranks"]) > 1:
        name += f", on device {other['device']} of rank {other['rank']}"
    uses = f"{'uses' if run['state'] == 'running' else 'last reported'} {amount(other['used_bytes'])}"
    return f"{name}: {uses if other['on_device'] else 'has left'}, highest {amount(other['peak_bytes'])}"


def _split_step(server: str, run: RunInFull) -> Step | None:
    """Return the highest of the newest steps with a breakdown. The agent breaks down only some steps, because it costs time."""
    known = [rank for rank in run["ranks"] if rank["peak_allocated_bytes"] is not None]
    if run["peak_categories"] or not known:
        return None
    rank = max(known, key=lambda rank: rank["peak_allocated_bytes"] or 0)["rank"]
    steps: list[Step] = ask(server, f"/runs/{run['run_id']}/steps", rank=rank, limit=_SEARCHED_STEPS)
    broken_down = [step for step in steps if any(value is not None for value in step["peak_categories"].values())]
    return max(broken_down, key=lambda step: step["peak_allocated_bytes"] or 0, default=None)


def _workspaces(recorded: AnatomyAnswer | None) -> int:
    rows = recorded["categories"] if recorded else ()
    return sum(row["bytes"] for row in rows if row["category"] == "workspaces")


def change_in_words(change: NextChange) -> str:
    """The change most worth trying in one line; empty if none is known. The advice of a recording follows in full."""
    name = change["title"] or change["what"]
    if name is None:
        return ""
    saves = change["saves_bytes"]
    if not saves:
        return name
    return (
        f"{name} (saves {amount(saves)})"
        if change["of"] is None
        else f"{name} (peak {change['of']} falls by {amount(saves)})"
    )


def _instead(run: RunInFull, split: Step) -> str:
    same = split["peak_allocated_bytes"] == run["peak_allocated_bytes"]
    height = "equally high" if same else f"with {amount(split['peak_allocated_bytes'])}"
    there = "" if run["peak_step"] is None else f" in step {run['peak_step']}"
    return f"no breakdown{there}; in step {split['step']}, {height}:"


def _by_name(memory: CategoryMemory) -> dict[str, int | None]:
    """Return the bytes of each category, those of a newer server included."""
    return {name: value for name, value in memory.items() if value is None or isinstance(value, int)}


def _composition(parts: Mapping[str, int | None], peak_bytes: int | None, width: int, workspaces_bytes: int) -> Table:
    """Table of the memory at the peak, largest category first. Unknown categories are last and have no bar."""
    longest = max(0, min(_BAR, width - _BESIDE_BAR))
    known = sum(value for value in parts.values() if value is not None)
    total = max(peak_bytes or 0, known) or 1
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="crop", no_wrap=True)
    for name, value in sorted(parts.items(), key=lambda item: -1 if item[1] is None else item[1], reverse=True):
        if value is not None:
            bar = Text("█" * round(value / total * longest), style="cyan")
            table.add_row(CATEGORY_NAMES.get(name, name), amount(value), percent(value / total), bar)
            if name == "other" and parts.get("workspaces") is None and 0 < workspaces_bytes <= value:
                share = percent(workspaces_bytes / total)
                table.add_row("  including cuBLAS workspaces", amount(workspaces_bytes), share, "", style="dim")
    within = series.WITHIN_OTHER if parts.get("other") is not None else ()
    unknown = [CATEGORY_NAMES.get(name, name) for name, value in parts.items() if value is None and name not in within]
    if unknown:
        table.add_row(", ".join(unknown), amount(total - known), percent((total - known) / total), "together")
    return table
