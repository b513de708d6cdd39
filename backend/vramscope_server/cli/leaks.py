"""``vramscope leaks RUN``: findings with holder, source line and fix."""

from __future__ import annotations

import sys
from typing import Final

from rich.console import Console
from rich.text import Text
from typing_extensions import TypedDict

from vramscope.protocol.series import OVERLAPS
from vramscope_server.analysis.leaks.verdict_text import AFTER_LAST_USE, AT_THE_END, place, rounds
from vramscope_server.analysis.number_format import amount, count, duration
from vramscope_server.answers.leaks import FixEffect, LeakInWords, LeakReplay, LeakReport, LeakScan
from vramscope_server.cli.client import address, ask, path_of, print_json
from vramscope_server.cli.format import ABSENT, plain
from vramscope_server.cli.tables import Column, console, print_table

_VERDICT_STYLE: Final = {
    "leak": "bold red",
    "held": "bold yellow",
    "host": "default",
    "growth": "bold yellow",
    "none": "green",
    "unknown": "default",
}
_COLUMNS = (
    Column("HOLDER"),
    Column("KIND"),
    Column("WHERE"),
    Column("COUNT", needed=3, number=True),
    Column("AGE", needed=5, number=True),
    Column("RETAINED", number=True),
    Column("EXCLUSIVE", needed=4, number=True),
    Column("GROWTH", needed=1, number=True),
    Column("PEAK EFFECT", needed=2, number=True),
    Column("RANKS", needed=6, number=True),
)


class _FixOutcome(TypedDict):
    """Parts of ``LeakReplay`` that are printed with a leak."""

    recording: str | None
    rank: int | None
    effect: FixEffect | None
    reason: str


def show(server: str, as_json: bool, run: str) -> None:
    """Print the verdict and each leak with its chain and fix, or a JSON array of leaks. Raises client.Failure."""
    path = f"/runs/{path_of(server, run)}/leaks"
    report: LeakReport = ask(server, path)
    replayed = [(leak, _outcome(ask(server, f"{path}/{leak['id']}/replay"))) for leak in report["leaks"]]
    if as_json:
        print_json([leak | {"replay": outcome} for leak, outcome in replayed])
        if not report["scans"]:
            print("vramscope: no scan yet.", file=sys.stderr)
        return
    out = console()
    verdict = report["verdict"]
    out.print(Text(plain(verdict["sentence"]), style=_VERDICT_STYLE.get(verdict["level"], "default")))
    for scan in report["scans"]:
        if scan["not_scanned"]:
            out.print(Text(f"not scanned{_of_rank(scan, report)}: {plain(scan['not_scanned'])}", style="yellow"))
    if report["leaks"]:
        out.print()
        several = len(report["scans"]) > 1
        print_table(out, _COLUMNS, [_cells(leak, several=several) for leak in report["leaks"]])
        for leak, outcome in replayed:
            _print_detail(out, leak, outcome)
        out.print()
    for scan in report["scans"]:
        check = "last scan" if scan["tensors"] else "last check"
        text = f"{check}{_of_rank(scan, report)}: step {count(scan['step'])}, {plain(scan['reason'])}"
        cost = f"; {count(scan['tensors'])} tensors in {duration(scan['seconds'])}" if scan["tensors"] else ""
        out.print(Text(f"{text}{cost}", style="dim"))
    out.print(Text(f"{address(server)}/runs/{report['run_id']}/leaks", style="cyan"))


def _outcome(replay: LeakReplay) -> _FixOutcome:
    return {
        "recording": replay["recording"],
        "rank": replay["rank"],
        "effect": replay["effect"],
        "reason": replay["reason"],
    }


def _of_rank(scan: LeakScan, report: LeakReport) -> str:
    return f" of rank {scan['rank']}" if len(report["scans"]) > 1 else ""


def _cells(leak: LeakInWords, *, several: bool) -> list[str | Text]:
    age, growth = leak["age_steps"], leak["growth_bytes_per_step"]
    return [
        Text(plain(leak["name"]), style="bold"),
        leak["kind"],
        ABSENT if leak["file"] is None else plain(place(leak)),
        count(leak["count"]),
        ABSENT if age is None else f"1 {leak['per']}" if age == 1 else f"{count(age)} {rounds(leak['per'])}",
        amount(leak["held_bytes"]),
        amount(leak["exclusive_bytes"]),
        "none"
        if leak["emptied_after"] is not None
        else ABSENT
        if growth is None
        else f"{amount(growth)}/{leak['per']}",
        amount(leak["peak_effect_bytes"], ABSENT),
        ", ".join(map(str, leak["ranks"])) if several else "",
    ]


def _print_detail(out: Console, leak: LeakInWords, outcome: _FixOutcome) -> None:
    out.print()
    out.print(Text.assemble((plain(leak["name"]), "bold"), f"  {leak['kind_words']}"))
    links = leak["chain"] or [leak["holder"]]
    for depth, link in enumerate(links):
        out.print(Text(f"{'  ' * depth}{'└ ' if depth else '  '}{plain(link)}"), soft_wrap=True)
    if leak["emptied"]:
        out.print(Text(f"  emptied {plain(leak['emptied'])}", style="dim"))
    if leak["node_bytes"]:
        nodes = f"  and about {amount(leak['node_bytes'])} of host memory in autograd nodes"
        out.print(Text(nodes, style="dim"))
    if leak["examples"]:
        out.print(Text(f"  examples: {plain(', '.join(leak['examples']))}", style="dim"))
    if leak["peak_effect"]:
        out.print(Text(f"  {_measured(leak)}{plain(leak['peak_effect'])}", style="dim"))
    if outcome["effect"] is not None or not _is_on_cpu(leak):
        when = f"freed {AFTER_LAST_USE}, " if leak["kind"] in OVERLAPS else ""
        out.print(Text(f"  {when}by replay: {plain(_replayed(outcome))}", style="dim"))
    out.print(Text.assemble("  ", ("fix: ", "bold green"), plain(leak["advice"])))
    _print_lines(out, leak)


def _print_lines(out: Console, leak: LeakInWords) -> None:
    """The source line, and what takes its place where the line alone tells it."""
    source, fixed = leak["source"], leak["fixed"]
    if not source:
        return
    out.print(Text(f"    {'-' if fixed else ' '} {plain(source)}", style="red" if fixed else "dim"), soft_wrap=True)
    for line in fixed:
        out.print(Text(f"    + {plain(line)}", style="green"), soft_wrap=True)


def _measured(leak: LeakInWords) -> str:
    """What the measured effect belongs to."""
    effect = leak["peak_effect_bytes"]
    if effect is None or leak["kind"] not in OVERLAPS:
        return ""
    return f"freed {AT_THE_END}, measured: the peak falls by {amount(effect) if effect else '0'}. "


def _is_on_cpu(leak: LeakInWords) -> bool:
    """Return True for tensors on the CPU. Recordings cover the GPU's allocator only."""
    return bool(leak["examples"]) and all(example.endswith(" on cpu") for example in leak["examples"])


def _replayed(outcome: _FixOutcome) -> str:
    """Format the peak of the recorded step after the fix."""
    effect = outcome["effect"]
    if effect is None:
        return f"unknown, {outcome['reason']}"
    before, after = effect["peak_reserved_bytes"], effect["peak_reserved_after_bytes"]
    low, high = effect["peak_reserved_after_band"]
    band = "" if low == high else f" ({amount(low)} to {amount(high)})"
    falls = f"falls from {amount(before)} to {amount(after)}" if after < before else f"stays at {amount(before)}"
    return f"{effect['words']} Reserved {falls}{band}."
