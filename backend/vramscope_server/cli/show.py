"""``vramscope show RUN``: one run, its peak and its memory breakdown. The demo ends with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vramscope.protocol import series
from vramscope_server.analysis.advice.recorded_peak import contains_peak
from vramscope_server.analysis.number_format import UNKNOWN, amount, count, duration, percent
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.next_change import NextChange
from vramscope_server.answers.recordings import RecordingList
from vramscope_server.answers.run_detail import CategoryMemory, Loss, Pitfall, RunAnswer, RunInFull, Technique
from vramscope_server.answers.steps import Step
from vramscope_server.cli.client import Failure, Source, address, ask, path_of, print_json
from vramscope_server.cli.format import STATE_STYLE, ago, cost, has_no_device, plain
from vramscope_server.cli.tables import console, put

CATEGORY_NAMES: Final = {
    "optimizer": "optimizer state",
    "activations": "activations, temporaries",
    "workspaces": "cuBLAS workspaces",
}
"""Names as on the pages. Activations and temporaries are one sum; a recorded step separates them."""
_PARTS: Final[Mapping[Literal["unusable_bytes", "usable_bytes", "rounding_bytes", "requested_bytes"], str]] = {
    "unusable_bytes": "unusable",
    "usable_bytes": "free",
    "rounding_bytes": "rounding",
    "requested_bytes": "requested",
}
"""Parts of reserved memory (docs/fragmentation.md)."""
_NO_LEAK: Final = {
    "growth": "no holder found, but memory after each step rises",
    "held": "none found, but a value is retained one step longer than needed",
    "host": "none found on the device",
}
"""What is said of leaks where none counts as one, by the level of the leak verdict."""
_BAR: Final = 32
_BESIDE_BAR: Final = 50
"""Characters before a bar."""
_SEARCHED_STEPS: Final = 2000


def show(server: str, as_json: bool, run: str) -> None:
    """Print the summary, or the API's answer as JSON. Raises client.Failure."""
    detail: RunAnswer = ask(server, f"/runs/{path_of(server, run)}")
    if as_json:
        print_json(detail)
    else:
        try:
            recorded = recorded_of(server, detail)
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
    if change is not None and (first := change_in_words(change)):
        table.add_row("try first", Text(plain(first), style="bold"))
    for number, sentence in enumerate(advice):
        table.add_row("" if number else "advice", Text(plain(sentence)))
    put(out, table)
    out.print(Text(f"{server}/runs/{run['run_id']}", style="cyan"))


def _split_step(server: str, run: RunInFull) -> Step | None:
    """Return the highest of the newest steps with a breakdown. The agent breaks down only some steps, because it costs time."""
    known = [rank for rank in run["ranks"] if rank["peak_allocated_bytes"] is not None]
    if run["peak_categories"] or not known:
        return None
    rank = max(known, key=lambda rank: rank["peak_allocated_bytes"] or 0)["rank"]
    steps: list[Step] = ask(server, f"/runs/{run['run_id']}/steps", rank=rank, limit=_SEARCHED_STEPS)
    broken_down = [step for step in steps if any(value is not None for value in step["peak_categories"].values())]
    return max(broken_down, key=lambda step: step["peak_allocated_bytes"] or 0, default=None)


def recorded_of(server: Source, run: RunInFull) -> AnatomyAnswer | None:
    """Return the anatomy of the newest complete recording; None if there is none. Raises Failure if it cannot be read."""
    if not run.get("recordings"):
        return None
    listed: RecordingList = ask(server, f"/runs/{run['run_id']}/recordings")
    newest = next((one["recording"] for one in listed["recordings"] if one["whole"]), None)
    anatomy: AnatomyAnswer | None = ask(server, f"/recordings/{newest}/anatomy") if newest else None
    return anatomy


def _workspaces(recorded: AnatomyAnswer | None) -> int:
    rows = recorded["categories"] if recorded else ()
    return sum(row["bytes"] for row in rows if row["category"] == "workspaces")


def advice_of(run: RunInFull, recorded: AnatomyAnswer | None) -> list[str]:
    """Return the advice of the newest recording, most bytes first.

    Its bytes refer to the recorded peak. A sentence says so if the run's peak is higher.
    """
    if recorded is None:
        return []
    of_run = [one["sentence"] for one in recorded["advice"] if one["evidence"].get("of") == "run"]
    found = [one["sentence"] for one in recorded["advice"] if one["evidence"].get("of") != "run"]
    highest = run["peak_allocated_bytes"]
    if found and highest is not None and not contains_peak(recorded["allocated_bytes"], highest):
        found.insert(
            0,
            f"for the recorded peak, {recorded['moment']}; the run's peak of {amount(highest)} was not recorded:",
        )
    return of_run + found


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


def facts_of(run: RunInFull, leaks: LeakReport | None) -> Iterator[tuple[str, str]]:
    if run["note"]:
        yield "note", plain(" ".join(run["note"].split()))
    yield "device", _device(run)
    if (run["world_size"] or 1) > 1:
        yield "ranks", f"{run['ranks_reporting']} of {run['world_size']} reporting{_highest_rank(run)}"
    each = f", {duration(run['step_seconds_median'])} each (median)" if run["steps"] else ""
    ran_out = run["state"] == "failed" and "OutOfMemory" in (run["error_type"] or "")
    yield "steps", f"{count(run['steps'])}{' finished before the error' if ran_out else ''}{each}"
    least = "at least " if run["lower_bound_steps"] else ""
    yield (
        "peak allocated",
        least + amount(run["peak_allocated_bytes"]) + _moment(run) + _share(run, "peak_allocated_bytes"),
    )
    yield "peak reserved", least + amount(run["peak_reserved_bytes"]) + _share(run, "peak_reserved_bytes")
    if run["foreign_reset_steps"]:
        yield "counters reset", _resets(run)
    yield "never needed", _never_needed(run)
    yield "unusable", _unusable(run)
    yield "allocator", _allocator(run["allocator_settings"])
    yield "techniques", _techniques(run["techniques"])
    yield "loss", _loss(run.get("loss"))
    yield "leaks", _leaks(run, leaks)
    if run.get("out_of_memory_count"):
        times = run["out_of_memory_count"]
        yield "out of memory", "once" if times == 1 else f"{count(times)} times"
    yield "agent overhead", cost(run["agent_overhead"])
    if run["dropped_samples"] != 0:
        yield "lost samples", count(run["dropped_samples"])
    for finding in run["findings"] or ():
        yield "finding", _finding(finding)


def _device(run: RunInFull) -> str:
    capacity = run["capacity_bytes"]
    words = plain(run["device"] or UNKNOWN) + ("" if capacity is None else f", {amount(capacity)}")
    return f"{words} (no peak counters)" if has_no_device(run) else words


def _highest_rank(run: RunInFull) -> str:
    known = [rank for rank in run["ranks"] if rank["peak_allocated_bytes"] is not None]
    if len(known) < 2:
        return ""
    low, high = (choose(known, key=lambda rank: rank["peak_allocated_bytes"] or 0) for choose in (min, max))
    least, most = (amount(rank["peak_allocated_bytes"]) for rank in (low, high))
    return f"; peaks from {least} (rank {low['rank']}) to {most} (rank {high['rank']})"


def _moment(run: RunInFull) -> str:
    step = "" if run["peak_step"] is None else f" in step {run['peak_step']}"
    return step + (f", {run['peak_phase']}" if run["peak_phase"] else "")


def _resets(run: RunInFull) -> str:
    steps, bounds = run["foreign_reset_steps"], run["lower_bound_steps"]
    text = f"by other code, in {count(steps)} {'step' if steps == 1 else 'steps'}"
    return f"{text}; peaks are lower bounds in {count(bounds)} of them" if bounds else f"{text}; peaks are exact"


def _share(run: RunInFull, name: Literal["peak_allocated_bytes", "peak_reserved_bytes"]) -> str:
    value, capacity = run[name], run["capacity_bytes"]
    return "" if value is None or not capacity else f" ({percent(value / capacity)} of the device)"


def _never_needed(run: RunInFull) -> str:
    fraction, held = run["fragmentation_fraction"], run["fragmentation"]
    if fraction is None:
        return UNKNOWN
    never_needed = None if held is None else held.get("never_needed_bytes")
    return f"{percent(fraction)}: peak reserved exceeds peak allocated by {amount(never_needed)}"


def _unusable(run: RunInFull) -> str:
    """Format the parts of reserved memory at its peak."""
    held = run["fragmentation"]
    unusable = None if held is None else held.get("unusable_bytes")
    if held is None or unusable is None:
        return UNKNOWN if has_no_device(run) else f"{UNKNOWN}: needs a recording"
    parts = held.get("parts")
    if parts is None:
        return f"at the recorded peak of reserved memory: {amount(unusable)} unusable"
    sums = (f"{amount(parts[name])} {words}" for name, words in _PARTS.items())
    return f"at the recorded peak of reserved memory ({amount(parts['reserved_bytes'])}): {', '.join(sums)}"


def _loss(loss: Loss | None) -> str:
    if loss is None:
        return UNKNOWN
    odd, words = loss["not_finite"], []
    if loss["final"] is not None:
        mean = f" (mean of the last {count(loss['final_of'])} readings)" if loss["final_of"] > 1 else ""
        words.append(f"last {loss['final']:.4g}{mean}")
    if loss["first"] is not None and loss["count"] > 1:
        words.append(f"first {loss['first']:.4g}")
    if odd is not None:
        words.append(f"first {odd['value']} in step {count(odd['step'])}, {count(odd['count'])} in total")
    return f"{'; '.join(words)}; source: {loss['source']}"


def _leaks(run: RunInFull, leaks: LeakReport | None) -> str:
    found = run["leaks"]
    if found is None:
        return f"{UNKNOWN}: no scan yet"
    if not run["leak_count"]:
        level = None if leaks is None else leaks["verdict"]["level"]
        if level in _NO_LEAK:
            return f"{_NO_LEAK[level]}; see vramscope leaks"
        left_out = leaks is not None and any(scan["not_scanned"] for scan in leaks["scans"])
        if leaks is not None and leaks["verdict"]["level"] == "unknown":
            return "none found; too few steps to detect growth"
        return "none found; the last scan left something out" if left_out else "none found"
    worst = f"{found[0]['kind']}: {plain(found[0]['name'])}"
    return f"{count(run['leak_count'])}, retaining {amount(run['leaked_bytes'])} ({worst}); see vramscope leaks"


def _techniques(techniques: list[Technique] | None) -> str:
    """Format techniques. A declared one that was not observed is marked."""
    if techniques is None:
        return f"{UNKNOWN}: not reported"
    chips = (
        plain(technique["chip"]) + (" (declared, not observed)" if technique["observed"] == "" else "")
        for technique in techniques
    )
    return ", ".join(chips) or "none observed yet"


def _finding(finding: Pitfall) -> str:
    line = f":{finding['line']}" if finding["line"] else ""
    where = f" ({finding['file']}{line})" if finding["file"] else ""
    return plain(f"{finding['text']} Fix: {finding['advice']}.{where}")


def _allocator(settings: str | None) -> str:
    return UNKNOWN if settings is None else plain(settings) or "default settings"


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
