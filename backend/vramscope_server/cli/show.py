"""``vramscope show RUN``: one run, its peak and what made it. Also what the demo ends with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope_server.cli.screen import console
from vramscope_server.cli.talk import address, ask, path_of, print_json
from vramscope_server.cli.words import STATE_STYLE, UNKNOWN, ago, amount, cost, count, duration, percent, plain

_BAR: Final = 32
_BESIDE_BAR: Final = 50
"""Characters that stand before a bar."""
_SEARCHED_STEPS: Final = 2000


def show(server: str, as_json: bool, run: str) -> None:
    """Print the summary, or the API's answer as JSON. Raises talk.Failure."""
    told: dict[str, Any] = ask(server, f"/runs/{path_of(server, run)}")
    if as_json:
        print_json(told)
    else:
        print_summary(console(), told, _split_step(server, told), address(server))


def print_summary(out: Console, told: dict[str, Any], split: dict[str, Any] | None, server: str) -> None:
    """A run in full, as ``GET /runs/RUN`` tells it, for a person.

    split   the highest step whose composition is known, where that of the peak itself is not
    """
    out.print(
        Text.assemble(
            (plain(told["name"]), "bold"),
            "  ",
            (told["state"], STATE_STYLE.get(told["state"], "default")),
            (f"  in project {plain(told['project'])}, started {ago(told['started_seconds'])}", "dim"),
        )
    )
    if told["error_type"]:
        out.print(Text(f"{plain(told['error_type'])}: {plain(told['error_line'] or '')}", style="red"))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _facts(told):
        table.add_row(name, Text(value))
        if name == "peak allocated" and told["peak_categories"]:
            table.add_row("", _composition(told["peak_categories"], out.width))
        elif name == "peak allocated" and split is not None:
            table.add_row("", Text(_instead(told, split), style="dim"))
            table.add_row("", _composition(split["peak_categories"], out.width))
    out.print(table)
    out.print(Text(f"{server}/runs/{told['run_id']}", style="cyan"))


def _split_step(server: str, told: dict[str, Any]) -> dict[str, Any] | None:
    """The highest of the newest steps that were taken apart: the agent does that only now and then, as it costs time."""
    known = [rank for rank in told["ranks"] if rank["peak_allocated_bytes"] is not None]
    if told["peak_categories"] or told["peak_step"] is None or not known:
        return None
    rank = max(known, key=lambda rank: int(rank["peak_allocated_bytes"]))["rank"]
    steps = ask(server, f"/runs/{told['run_id']}/steps", rank=rank, limit=_SEARCHED_STEPS)
    taken_apart = [step for step in steps if any(value is not None for value in step["peak_categories"].values())]
    return max(taken_apart, key=lambda step: int(step["peak_allocated_bytes"]), default=None)


def _instead(told: dict[str, Any], split: dict[str, Any]) -> str:
    same = split["peak_allocated_bytes"] == told["peak_allocated_bytes"]
    height = "just as high" if same else f"with {amount(split['peak_allocated_bytes'])}"
    return f"not taken apart in step {told['peak_step']}; in step {split['step']}, {height}:"


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "device", _device(told)
    if (told["world_size"] or 1) > 1:
        yield "ranks", f"{told['ranks_reporting']} of {told['world_size']} reporting{_highest_rank(told)}"
    yield "steps", f"{count(told['steps'])}, {duration(told['step_seconds_median'])} each (median)"
    yield "peak allocated", amount(told["peak_allocated_bytes"]) + _moment(told) + _share(told, "peak_allocated_bytes")
    yield "peak reserved", amount(told["peak_reserved_bytes"]) + _share(told, "peak_reserved_bytes")
    yield "fragmentation", _fragmentation(told)
    yield "allocator", _allocator(told["allocator_settings"])
    yield "leaks", _leaks(told)
    if told.get("out_of_memory_count"):
        yield "out of memory", f"{told['out_of_memory_count']} times"
    yield "watching costs", cost(told["agent_overhead"])
    if told["dropped_samples"]:
        yield "lost samples", count(told["dropped_samples"])


def _device(told: dict[str, Any]) -> str:
    capacity = told["capacity_bytes"]
    return plain(told["device"] or UNKNOWN) + ("" if capacity is None else f", {amount(capacity)}")


def _highest_rank(told: dict[str, Any]) -> str:
    known = [rank for rank in told["ranks"] if rank["peak_allocated_bytes"] is not None]
    if len(known) < 2:
        return ""
    low, high = (choose(known, key=lambda rank: int(rank["peak_allocated_bytes"])) for choose in (min, max))
    least, most = (amount(rank["peak_allocated_bytes"]) for rank in (low, high))
    return f"; peaks from {least} (rank {low['rank']}) to {most} (rank {high['rank']})"


def _moment(told: dict[str, Any]) -> str:
    step = "" if told["peak_step"] is None else f" in step {told['peak_step']}"
    return step + (f", {told['peak_phase']}" if told["peak_phase"] else "")


def _share(told: dict[str, Any], name: str) -> str:
    value, capacity = told[name], told["capacity_bytes"]
    return "" if value is None or not capacity else f" ({percent(value / capacity)} of the device)"


def _fragmentation(told: dict[str, Any]) -> str:
    held = told["fragmentation"]
    if not held:
        return UNKNOWN
    pieces, idle = amount(held["inactive_split_bytes"]), amount(held["reserved_minus_allocated_bytes"])
    fraction = told["fragmentation_fraction"]
    stranded = (
        ""
        if fraction is None
        else f"{percent(fraction)}: {amount(held['stranded_bytes'])} free but of no use to this run; "
    )
    return f"{stranded}{pieces} in free pieces of segments; {idle} reserved but not allocated"


def _leaks(told: dict[str, Any]) -> str:
    found = told["leaks"]
    if found is None:
        return f"{UNKNOWN}: the agent has not looked yet"
    if not found:
        return "none found"
    worst = f"{found[0]['kind']}: {plain(found[0]['name'])}"
    return f"{count(len(found))}, holding {amount(told['leaked_bytes'])} ({worst}); vramscope leaks tells more"


def _allocator(settings: str | None) -> str:
    return UNKNOWN if settings is None else plain(settings) or "default settings"


def _composition(parts: dict[str, int | None], width: int) -> Table:
    """What was allocated at the peak, largest first; what is not known stands last and has no bar."""
    longest = max(0, min(_BAR, width - _BESIDE_BAR))
    total = sum(value for value in parts.values() if value is not None) or 1
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="crop", no_wrap=True)
    for name, value in sorted(parts.items(), key=lambda item: -1 if item[1] is None else item[1], reverse=True):
        if value is None:
            table.add_row(name, UNKNOWN, "", "")
        else:
            bar = Text("█" * round(value / total * longest), style="cyan")
            table.add_row(name, amount(value), percent(value / total), bar)
    return table
