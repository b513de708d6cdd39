"""``vramscope show RUN``: one run, its peak and what made it. Also what the demo ends with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope_server.cli.client import Failure, address, ask, path_of, print_json
from vramscope_server.cli.format import (
    STATE_STYLE,
    UNKNOWN,
    ago,
    amount,
    cost,
    count,
    duration,
    has_no_card,
    percent,
    plain,
)
from vramscope_server.cli.tables import console, put

_CALLED: Final = {"optimizer": "optimizer state", "activations": "activations, temporaries"}
"""As the pages call them: what came since the forward began is one sum, which a recorded step takes apart."""
PARTS: Final = {"unusable": "free and of no use", "usable": "free", "rounding": "rounding", "requested": "asked for"}
"""of what is reserved (docs/fragmentation.md)"""
_BAR: Final = 32
_BESIDE_BAR: Final = 50
"""Characters that stand before a bar."""
_SEARCHED_STEPS: Final = 2000
_AS_HIGH: Final = 0.98
"""Of the run's peak: a recording that reaches so far is of it."""


def show(server: str, as_json: bool, run: str) -> None:
    """Print the summary, or the API's answer as JSON. Raises talk.Failure."""
    told: dict[str, Any] = ask(server, f"/runs/{path_of(server, run)}")
    if as_json:
        print_json(told)
    else:
        recorded = _recorded(server, told)
        print_summary(
            console(), told, _split_step(server, told), address(server), _advice(told, recorded), _workspaces(recorded)
        )


def print_summary(
    out: Console,
    told: dict[str, Any],
    split: dict[str, Any] | None,
    server: str,
    advice: Sequence[str] = (),
    workspaces_bytes: int = 0,
) -> None:
    """A run in full, as ``GET /runs/RUN`` tells it, for a person.

    split    the highest step whose composition is known, where that of the peak itself is not
    advice   what would make the peak lower, in sentences
    workspaces_bytes   what cuBLAS holds for its work, as a recording tells: counters see it as "other"
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
            table.add_row(
                "", _composition(told["peak_categories"], told["peak_allocated_bytes"], out.width, workspaces_bytes)
            )
        elif name == "peak allocated" and split is not None:
            table.add_row("", Text(_instead(told, split), style="dim"))
            table.add_row(
                "", _composition(split["peak_categories"], split["peak_allocated_bytes"], out.width, workspaces_bytes)
            )
    for number, sentence in enumerate(advice):
        table.add_row("" if number else "advice", Text(plain(sentence)))
    put(out, table)
    out.print(Text(f"{server}/runs/{told['run_id']}", style="cyan"))


def _split_step(server: str, told: dict[str, Any]) -> dict[str, Any] | None:
    """The highest of the newest steps that were taken apart: the agent does that only now and then, as it costs time."""
    known = [rank for rank in told["ranks"] if rank["peak_allocated_bytes"] is not None]
    if told["peak_categories"] or not known:
        return None
    rank = max(known, key=lambda rank: int(rank["peak_allocated_bytes"]))["rank"]
    steps = ask(server, f"/runs/{told['run_id']}/steps", rank=rank, limit=_SEARCHED_STEPS)
    taken_apart = [step for step in steps if any(value is not None for value in step["peak_categories"].values())]
    return max(taken_apart, key=lambda step: int(step["peak_allocated_bytes"]), default=None)


def _recorded(server: str, told: dict[str, Any]) -> dict[str, Any] | None:
    """The anatomy of the newest whole recording; None where there is none, or it cannot be read."""
    if not told.get("recordings"):
        return None
    try:
        listed = ask(server, f"/runs/{told['run_id']}/recordings")["recordings"]
        newest = next((one["recording"] for one in listed if one["whole"]), None)
        anatomy: dict[str, Any] | None = ask(server, f"/recordings/{newest}/anatomy") if newest else None
    except Failure:
        return None
    return anatomy


def _workspaces(recorded: dict[str, Any] | None) -> int:
    rows = recorded["categories"] if recorded else ()
    return sum(int(row["bytes"]) for row in rows if row["category"] == "workspaces")


def _advice(told: dict[str, Any], recorded: dict[str, Any] | None) -> list[str]:
    """What the newest recording advises, most bytes first.

    Its bytes are of the step with its own peak: where the run was higher at another time, that is said first.
    """
    if recorded is None:
        return []
    of_run = [str(one["sentence"]) for one in recorded["advice"] if one["evidence"].get("of") == "run"]
    found = [str(one["sentence"]) for one in recorded["advice"] if one["evidence"].get("of") != "run"]
    highest = told["peak_allocated_bytes"]
    if found and highest is not None and recorded["allocated_bytes"] < _AS_HIGH * highest:
        found.insert(
            0,
            f"of the recorded moment with most, {recorded['moment']}; the run's peak of {amount(highest)} was not recorded:",
        )
    return of_run + found


def _instead(told: dict[str, Any], split: dict[str, Any]) -> str:
    same = split["peak_allocated_bytes"] == told["peak_allocated_bytes"]
    height = "just as high" if same else f"with {amount(split['peak_allocated_bytes'])}"
    there = "" if told["peak_step"] is None else f" in step {told['peak_step']}"
    return f"not taken apart{there}; in step {split['step']}, {height}:"


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "device", _device(told)
    if (told["world_size"] or 1) > 1:
        yield "ranks", f"{told['ranks_reporting']} of {told['world_size']} reporting{_highest_rank(told)}"
    each = f", {duration(told['step_seconds_median'])} each (median)" if told["steps"] else ""
    yield "steps", f"{count(told['steps'])}{each}"
    least = "at least " if told["lower_bound_steps"] else ""
    yield (
        "peak allocated",
        least + amount(told["peak_allocated_bytes"]) + _moment(told) + _share(told, "peak_allocated_bytes"),
    )
    yield "peak reserved", least + amount(told["peak_reserved_bytes"]) + _share(told, "peak_reserved_bytes")
    if told["foreign_reset_steps"]:
        yield "counters reset", _resets(told)
    yield "never needed", _never_needed(told)
    yield "unusable", _unusable(told)
    yield "allocator", _allocator(told["allocator_settings"])
    yield "trained with", _techniques(told["techniques"])
    yield "loss", _loss(told.get("loss"))
    yield "leaks", _leaks(told)
    if told.get("out_of_memory_count"):
        times = told["out_of_memory_count"]
        yield "out of memory", "once" if times == 1 else f"{count(times)} times"
    yield "watching costs", cost(told["agent_overhead"])
    if told["dropped_samples"] != 0:
        yield "lost samples", count(told["dropped_samples"])
    for finding in told["findings"] or ():
        yield "finding", _finding(finding)


def _device(told: dict[str, Any]) -> str:
    capacity = told["capacity_bytes"]
    words = plain(told["device"] or UNKNOWN) + ("" if capacity is None else f", {amount(capacity)}")
    return f"{words}, whose allocator counts no peaks" if has_no_card(told) else words


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


def _resets(told: dict[str, Any]) -> str:
    steps, bounds = told["foreign_reset_steps"], told["lower_bound_steps"]
    said = f"by somebody else, in {count(steps)} {'step' if steps == 1 else 'steps'}"
    return f"{said}; peaks are lower bounds in {count(bounds)} of them" if bounds else f"{said}; the peaks are exact"


def _share(told: dict[str, Any], name: str) -> str:
    value, capacity = told[name], told["capacity_bytes"]
    return "" if value is None or not capacity else f" ({percent(value / capacity)} of the device)"


def _never_needed(told: dict[str, Any]) -> str:
    fraction, held = told["fragmentation_fraction"], told["fragmentation"] or {}
    if fraction is None:
        return UNKNOWN
    return f"{percent(fraction)}: {amount(held.get('never_needed_bytes'))} of what was reserved at most were never needed at once"


def _unusable(told: dict[str, Any]) -> str:
    """Free and of no use to this run when most was reserved, and where the rest was."""
    held = told["fragmentation"] or {}
    unusable, parts = held.get("unusable_bytes"), held.get("parts")
    if unusable is None:
        return UNKNOWN if has_no_card(told) else f"{UNKNOWN}: a recorded window tells what is of use to this run"
    if parts is None:
        return f"{amount(unusable)} free and of no use to this run when most was reserved"
    sums = (f"{amount(parts[f'{name}_bytes'])} {words}" for name, words in PARTS.items())
    return f"{' + '.join(sums)} = {amount(parts['reserved_bytes'])} reserved, when it was most"


def _loss(loss: dict[str, Any] | None) -> str:
    if loss is None:
        return UNKNOWN
    odd, words = loss["not_finite"], []
    if loss["final"] is not None:
        mean = (
            f", mean of the last {count(loss['final_of'])} of {count(loss['count'])} that were read"
            if loss["final_of"] > 1
            else ""
        )
        words.append(f"{loss['final']:.4g}{mean}")
    if loss["first"] is not None and loss["count"] > 1:
        words.append(f"{loss['first']:.4g} at first")
    if odd is not None:
        words.append(f"{odd['value']} for the first time in step {count(odd['step'])}, {count(odd['count'])} in all")
    return f"{'; '.join(words)} ({loss['source']})"


def _leaks(told: dict[str, Any]) -> str:
    found = told["leaks"]
    if found is None:
        return f"{UNKNOWN}: the agent has not looked yet"
    if not found:
        return "none found"
    worst = f"{found[0]['kind']}: {plain(found[0]['name'])}"
    return f"{count(len(found))}, holding {amount(told['leaked_bytes'])} ({worst}); vramscope leaks tells more"


def _techniques(techniques: list[dict[str, Any]] | None) -> str:
    """Chips; one that is declared and was not seen says so."""
    if techniques is None:
        return f"{UNKNOWN}: the agent tells of no techniques"
    chips = (plain(told["chip"]) + (" (declared, not seen)" if told["observed"] == "" else "") for told in techniques)
    return ", ".join(chips) or "nothing seen yet"


def _finding(finding: dict[str, Any]) -> str:
    line = f":{finding['line']}" if finding["line"] else ""
    where = f" ({finding['file']}{line})" if finding["file"] else ""
    return plain(f"{finding['text']} What to do: {finding['advice']}.{where}")


def _allocator(settings: str | None) -> str:
    return UNKNOWN if settings is None else plain(settings) or "default settings"


def _composition(parts: dict[str, int | None], peak_bytes: int | None, width: int, workspaces_bytes: int) -> Table:
    """What was allocated at the peak, largest first, as shares of all of it; what is not known stands last and has no bar."""
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
            table.add_row(_CALLED.get(name, name), amount(value), percent(value / total), bar)
            if name == "other" and 0 < workspaces_bytes <= value:
                share = percent(workspaces_bytes / total)
                table.add_row("  of it cuBLAS workspaces", amount(workspaces_bytes), share, "", style="dim")
    unknown = [_CALLED.get(name, name) for name, value in parts.items() if value is None]
    if unknown:
        table.add_row(
            ", ".join(unknown), amount(total - known), percent((total - known) / total), "together: not told apart"
        )
    return table
