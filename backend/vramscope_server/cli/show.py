"""``vramscope show RUN``: what made the peak."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope_server.cli.talk import ask, find, print_json
from vramscope_server.cli.words import STATE_STYLE, UNKNOWN, ago, amount, duration, percent

_BAR = 32


def show(server: str, as_json: bool, run: str) -> None:
    """Print the run, or the API's answer as JSON. Raises talk.Failure."""
    told: dict[str, Any] = ask(server, f"/runs/{find(server, run)}")
    if as_json:
        print_json(told)
        return
    console = Console(highlight=False)
    title = Text.assemble((told["name"], "bold"), "  ", (told["state"], STATE_STYLE.get(told["state"], "default")))
    console.print(title, Text(f"{told['project']}  {told['run_id']}", style="dim"))
    if told["error_type"]:
        console.print(Text(f"{told['error_type']}: {told['error_line'] or ''}", style="red"))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in _facts(told):
        table.add_row(name, Text(value))
    console.print(table)
    _categories(console, told)


def _facts(told: dict[str, Any]) -> list[tuple[str, str]]:
    where = "" if told["peak_step"] is None else f" in step {told['peak_step']}"
    where += f", {told['peak_phase']}" if told["peak_phase"] else ""
    fragmentation = told["fragmentation"] or {}
    cost = told["agent_overhead"]
    ranks = f"{told['ranks_reporting']} of {told['world_size']} ranks reporting"
    return [
        ("device", f"{told['device'] or UNKNOWN}, {amount(told['capacity_bytes'])}"),
        ("peak allocated", amount(told["peak_allocated_bytes"]) + where),
        ("peak reserved", amount(told["peak_reserved_bytes"])),
        (
            "fragmentation",
            f"{percent(told['fragmentation_fraction'])}: {amount(fragmentation.get('inactive_split_bytes'))} in free pieces,"
            f" {amount(fragmentation.get('reserved_minus_allocated_bytes'))} reserved but not allocated"
            if fragmentation
            else UNKNOWN,
        ),
        (
            "steps",
            f"{told['steps'] if told['steps'] is not None else UNKNOWN}, {duration(told['step_seconds_median'])} each (median)",
        ),
        ("ranks", ranks if (told["world_size"] or 1) > 1 else "1"),
        (
            "allocator",
            told["allocator_settings"]
            if told["allocator_settings"]
            else "no settings"
            if told["allocator_settings"] == ""
            else UNKNOWN,
        ),
        ("watching costs", _cost(cost)),
        ("lost samples", str(told["dropped_samples"])),
        ("started", ago(told["started_seconds"])),
    ]


def _cost(cost: dict[str, Any] | None) -> str:
    if not cost or cost["fraction"] is None:
        return "not measured yet"
    if not cost["resolvable"]:
        return f"below {percent(max(0.005, cost['noise_fraction'] or 0))}"
    return f"{percent(cost['fraction'])} of a step, {duration(cost['seconds_per_step'])}"


def _categories(console: Console, told: dict[str, Any]) -> None:
    parts = told["peak_categories"]
    if not parts:
        return
    known = {name: value for name, value in parts.items() if value is not None}
    total = sum(known.values()) or 1
    console.print(Text("\nat the peak", style="dim"))
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, value in sorted(known.items(), key=lambda item: -item[1]):
        table.add_row(
            name, amount(value), percent(value / total), Text("█" * round(value / total * _BAR), style="cyan")
        )
    for name in parts.keys() - known.keys():
        table.add_row(name, UNKNOWN, "", "")
    console.print(table)
