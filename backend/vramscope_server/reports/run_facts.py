"""Facts of a run in words, as ``vramscope show`` and the report of a run have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from vramscope_server.analysis.advice.recorded_peak import contains_peak
from vramscope_server.analysis.number_format import UNKNOWN, amount, count, duration, percent
from vramscope_server.analysis.peak_bound import PeakBound, peak_bound
from vramscope_server.answers.anatomy import AnatomyAnswer
from vramscope_server.answers.leaks import LeakReport
from vramscope_server.answers.run_detail import Loss, Pitfall, RunInFull, Technique
from vramscope_server.reports.plain_text import cost, has_no_device, plain

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
_HOST_PARTS: Final[tuple[Literal["process_anonymous_bytes", "child_processes_bytes", "shared_memory_bytes"], ...]] = (
    "process_anonymous_bytes",
    "child_processes_bytes",
    "shared_memory_bytes",
)
_NO_LEAK: Final = {
    "growth": "no holder found, but memory after each step rises",
    "held": "none found, but a value is retained one step longer than needed",
    "host": "none found on the device",
}
"""What is said of leaks where none counts as one, by the level of the leak verdict."""
_SEE: Final = "; see vramscope leaks"


def facts_of(run: RunInFull, leaks: LeakReport | None) -> Iterator[tuple[str, str]]:
    """Names and values, in the order in which they are shown. ``leaks`` is the answer of ``GET /runs/RUN/leaks``."""
    if run["note"]:
        yield "note", plain(" ".join(run["note"].split()))
    yield "device", _device(run)
    if (run["world_size"] or 1) > 1:
        yield "ranks", f"{run['ranks_reporting']} of {run['world_size']} reporting{_highest_rank(run)}"
    each = f", {duration(run['step_seconds_median'])} each (median)" if run["steps"] else ""
    ran_out = run["state"] == "failed" and "OutOfMemory" in (run["error_type"] or "")
    yield "steps", f"{count(run['steps'])}{' finished before the error' if ran_out else ''}{each}"
    yield from _device_memory(run)
    yield "techniques", _techniques(run["techniques"])
    yield "loss", _loss(run.get("loss"))
    yield "leaks", _leaks(run, leaks)
    if run.get("out_of_memory_count"):
        times = run["out_of_memory_count"]
        yield "out of memory", "once" if times == 1 else f"{count(times)} times"
    yield "agent overhead", cost(run["agent_overhead"])
    if host := _host_memory(run):
        yield "host memory", host
    if run["dropped_samples"] != 0:
        yield "lost samples", count(run["dropped_samples"])
    for finding in run["findings"] or ():
        yield "finding", _finding(finding)


def _device_memory(run: RunInFull) -> Iterator[tuple[str, str]]:
    """Peaks and allocator; nothing for a training on the CPU, where PyTorch counts no memory."""
    allocated, reserved = peak_bound(run, "peak_allocated"), peak_bound(run, "peak_reserved")
    if has_no_device(run) and allocated.bytes is None and reserved.bytes is None:
        return
    yield "peak allocated", _peak(allocated, _moment(run)) + _share(run, allocated.bytes)
    yield "peak reserved", _peak(reserved) + _share(run, reserved.bytes)
    if run["foreign_reset_steps"]:
        yield "counters reset", _resets(run)
    yield "never needed", _never_needed(run)
    yield "unusable", _unusable(run)
    yield "allocator", _allocator(run["allocator_settings"])


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


def _host_memory(run: RunInFull) -> str:
    """Format the parts of the rank with most; empty if none is known."""
    known = [(rank["rank"], parts) for rank in run["ranks"] if (parts := rank.get("host_memory"))]
    if not known:
        return ""
    rank, host = max(known, key=lambda one: sum(one[1][name] for name in _HOST_PARTS))
    children, largest = host["child_processes"], host["largest_child_bytes"]
    named = "child processes" if children is None else f"{count(children)} child process{'' if children == 1 else 'es'}"
    most = f" (largest {amount(largest)})" if children and children > 1 and largest is not None else ""
    words = [
        f"this process {amount(host['process_anonymous_bytes'])} (without files and libraries)",
        *([f"{named} {amount(host['child_processes_bytes'])}{most}"] if children != 0 else []),
        f"shared memory {amount(host['shared_memory_bytes'])}",
        f"rest of the host {amount(host['other_bytes'])}",
    ]
    of_rank = f"highest sum, on rank {rank}: " if len(run["ranks"]) > 1 else "highest sum: "
    return of_rank + ", ".join(words)


def _moment(run: RunInFull) -> str:
    step = "" if run["peak_step"] is None else f" in step {run['peak_step']}"
    return step + (f", {run['peak_phase']}" if run["peak_phase"] else "")


def _resets(run: RunInFull) -> str:
    steps, bounds = run["foreign_reset_steps"], run["lower_bound_steps"]
    text = f"by other code, in {count(steps)} {'step' if steps == 1 else 'steps'}"
    return f"{text}; peaks are lower bounds in {count(bounds)} of them" if bounds else f"{text}; peaks are exact"


def _peak(bound: PeakBound, moment: str = "") -> str:
    """A peak with its step. A reset of the counters has a row of its own."""
    sampled = " (sampled)" if bound.why == "sampled" else ""
    return f"{'at least ' if bound.is_lower else ''}{amount(bound.bytes)}{sampled}{moment}"


def _share(run: RunInFull, value: int | None) -> str:
    capacity = run["capacity_bytes"]
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
            return f"{_NO_LEAK[level]}{_SEE}"
        left_out = leaks is not None and any(scan["not_scanned"] for scan in leaks["scans"])
        if leaks is not None and leaks["verdict"]["level"] == "unknown":
            # With a slope, memory rises slightly, in jumps, or ever more slowly.
            uneven = leaks["floor"]["slope_bytes_per_step"] is not None
            return f"none confirmed{_SEE}" if uneven else "none found; too few steps to detect growth"
        return "none found; the last scan left something out" if left_out else "none found"
    worst = f"{found[0]['kind']}: {plain(found[0]['name'])}"
    return f"{count(run['leak_count'])}, retaining {amount(run['leaked_bytes'])} ({worst}){_SEE}"


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
    end = "" if finding["advice"].endswith(".") else "."
    return plain(f"{finding['text']} Fix: {finding['advice']}{end}{where}")


def _allocator(settings: str | None) -> str:
    return UNKNOWN if settings is None else plain(settings) or "default settings"


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
    if recorded.get("pending"):  # an older server has no such field
        found.append("Allocator settings are still being replayed; advice on them may follow.")
    return of_run + found
