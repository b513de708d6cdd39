"""Prints the summary at the end of a run: its peak by category, the problems that were found, and the first change to try."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vramscope.memory.host import highest_resident_bytes
from vramscope.process import terminal
from vramscope.process.identity import devices
from vramscope.protocol import messages, series
from vramscope.protocol.leak_notes import is_cut, is_leak, is_note, is_on_host, slows_down, was_needed
from vramscope.protocol.number_format import amount
from vramscope.sampling.highest_step import HighestStep

WORDS: Final = {
    "optimizer": "optimizer state",
    "activations": "activations and temporaries",
    "workspaces": "cuBLAS workspaces",
}
"""Texts of categories that differ from their names."""
NO_LEAK: Final = "No leak found up to step {step:,}, the last one scanned."
NO_SIGN: Final = "No sign of a leak: GPU memory after step {step:,} was no higher than after the second step."
"""Text if no scan was made, because there was no reason for one."""
MIN_SHARE: Final = 0.05
"""Smallest share of the peak that is listed."""


MOST_LETTERS: Final = 160
"""Maximum length of a quoted text."""


class EndState(NamedTuple):
    """State of a run at its end."""

    highest: HighestStep | None
    scan: messages.Scan | None
    """Newest scan for leaks."""
    findings: Sequence[messages.Pitfall] | None
    """Known pitfalls of the script; None if none were searched for."""
    rises: bool
    """True if memory after each step rises."""
    survived: int
    """Number of out-of-memory errors that the program caught."""
    failed: bool
    cpu_steps: int = 0
    """Number of steps of a training on the CPU; 0 on a GPU, and where the device is unknown."""


def print_summary(state: EndState, url: str, rank: int | None) -> None:
    """Print two to six lines: the peak, the problems, the first change to try, and the address of the run.

    Nothing is printed for a run without a step. ``rank`` is None if there is only one rank.
    """
    highest = state.highest
    if (highest is None and (not state.cpu_steps or has_other_gpu())) or not terminal.speaks_for_host():
        return
    of_rank = "" if rank is None else f"Rank {rank}: "
    peak_bytes = 0 if highest is None else highest.allocated_bytes
    lines = [
        cpu_line(state.cpu_steps) if highest is None else peak_line(highest, _total_bytes(highest.device)),
        *problem_lines(state),
        change_line(state.scan, state.findings or (), peak_bytes),
    ]
    for line in filter(None, lines):
        terminal.say(of_rank + line)
    terminal.say(f"Details: {url}")


def problem_lines(state: EndState) -> list[str]:
    """Return the problems. Say that there are none only if everything was searched and the run did not fail."""
    peak_bytes = 0 if state.highest is None else state.highest.allocated_bytes
    many = "an out-of-memory error" if state.survived == 1 else f"{state.survived:,} out-of-memory errors"
    problems = [f"The program survived {many}."] if state.survived else []
    if state.findings:
        more = f" ({len(state.findings) - 1:,} more on the page)" if len(state.findings) > 1 else ""
        problems.append(f"Finding{more}: {_shortened(state.findings[0].text)}")
    leaks = leak_line(state.scan, peak_bytes, rises=state.rises)
    no_leak = state.scan is not None and leaks == _no_leak(state.scan)
    if no_leak and not problems and state.findings is not None and not state.failed:
        return [f"{leaks} No other problems found."]
    return [*problems, *([leaks] if leaks else [])]


def change_line(scan: messages.Scan | None, findings: Sequence[messages.Pitfall], peak_bytes: int) -> str:
    """Return the most useful change, with its effect on the peak if known; empty if there is none."""
    leaks = [] if scan is None else [one for one in scan.leaks if not is_on_host(one) and not is_note(one, peak_bytes)]
    best = max(leaks, key=_worth, default=None)
    if best is None:
        return f"Most worth trying: {_sentence(findings[0].advice)}" if findings else ""
    at = f" ({Path(best.file).name}:{best.line})" if best.file and best.line else ""
    if best.peak_effect_bytes:
        saved = f" The peak falls by {amount(best.peak_effect_bytes)}."
    elif (best.growth_bytes_per_step or 0) >= 1 and is_leak(best):
        saved = f" It grows by {amount(round(best.growth_bytes_per_step or 0))} a {best.per}."
    else:
        saved = ""
    return f"Most worth trying: {_shortened(best.advice.rstrip('.'))}{at}.{saved}"


def _worth(leak: messages.Leak) -> int:
    """Return the bytes by which the peak falls; if unknown, the retained bytes."""
    return leak.held_bytes if leak.peak_effect_bytes is None else leak.peak_effect_bytes


def _sentence(text: str) -> str:
    return f"{_shortened(text).rstrip('.')}."


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS - 1].rstrip()}…"


def peak_line(highest: HighestStep, total_bytes: int | None) -> str:
    """Return the line ``Peak: 5.2 GiB allocated, 6.0 GiB reserved of 24.0 GiB, in step 120 (backward). 61 % activations.``"""
    of = "" if total_bytes is None else f" of {amount(total_bytes)}"
    on = f" on cuda:{highest.device}" if highest.device > 0 else ""
    phase = f" ({series.phase_name(highest.phase)})" if highest.is_phase_known else ""
    peak = f"Peak: {amount(highest.allocated_bytes)} allocated, {amount(highest.reserved_bytes)} reserved{of}{on}"
    when = "after the last step" if highest.step is None else f"in step {highest.step:,}"
    return f"{peak}, {when}{phase}.{_parts(highest)}"


def cpu_line(steps: int) -> str:
    """Return what is known of the memory of a training on the CPU: the process's own, by the system's count."""
    resident_bytes = highest_resident_bytes()
    process = (
        ""
        if resident_bytes is None
        else f" The process had at most {amount(resident_bytes)} of the host's memory, files and libraries included."
    )
    many = "1 step" if steps == 1 else f"{steps:,} steps"
    return f"{many} on the CPU, where PyTorch does not count memory.{process}"


def has_other_gpu() -> bool:
    """True on a machine with Apple's MPS or Intel's XPU, where a run without CUDA may still train on a GPU."""
    import torch

    return bool(torch.backends.mps.is_available() or torch.xpu.is_available())


def leak_line(scan: messages.Scan | None, peak_bytes: int, *, rises: bool = False) -> str:
    """Return the number of leaks and the largest one, or that a complete scan found none.

    Memory that is retained too long, or emptied repeatedly, is not a leak. The line is empty if nothing is known, if memory rises
    although no leak was found, and if only host memory is retained.
    """
    if scan is None:
        return ""
    on_device = [leak for leak in scan.leaks if not is_on_host(leak)]
    findings = sorted((leak for leak in on_device if not is_note(leak, peak_bytes)), key=lambda leak: -leak.held_bytes)
    leaks = [leak for leak in findings if is_leak(leak)]
    if leaks:
        found = "1 leak found" if len(leaks) == 1 else f"{len(leaks):,} leaks found, the largest"
        return f"{found}: {leaks[0].name} retains {amount(leaks[0].held_bytes)}."
    unsure = rises or scan.not_scanned or len(on_device) < len(scan.leaks) or not (peak_bytes or was_needed(scan))
    none = "" if unsure else _no_leak(scan) + _filling(scan)
    return " ".join(filter(None, [none, *(_held(leak) for leak in findings[:1])]))


def _no_leak(scan: messages.Scan) -> str:
    return (NO_LEAK if was_needed(scan) else NO_SIGN).format(step=scan.step)


def _filling(scan: messages.Scan) -> str:
    """Return a sentence on the largest container that grew until the run ended. It may have a bound, so it may be no leak."""
    filling = max(
        (leak for leak in scan.filling if not is_on_host(leak)), key=lambda leak: leak.held_bytes, default=None
    )
    if filling is None:
        return ""
    at = f" ({Path(filling.file).name}:{filling.line})" if filling.file and filling.line else ""
    late = round(filling.growth_bytes_per_step or 0.0)
    slower = f", more and more slowly (by {amount(late)} a {filling.per} of late)" if slows_down(filling) else ""
    grown = f"{filling.name}{at} had grown to {amount(filling.held_bytes)} by then{slower}"
    bound = (
        "a line that keeps only a slice of it may bound it" if is_cut(filling) else "whether it has a bound is unknown"
    )
    return f" {grown}; {bound}."


def _held(leak: messages.Leak) -> str:
    size = amount(leak.held_bytes)
    if leak.emptied_after is not None:
        return f"{leak.name} retains up to {size} until it is emptied."
    return f"{leak.name} retains {size} longer than needed."


def _parts(highest: HighestStep) -> str:
    if highest.categories is None:
        return ""
    known = {
        name: value
        for name, value in zip(series.CATEGORIES, highest.categories, strict=True)
        if value >= MIN_SHARE * highest.allocated_bytes
    }
    parts = [
        f"{100 * value / highest.allocated_bytes:.0f} % {WORDS.get(name, name)}"
        for name, value in sorted(known.items(), key=lambda one: -one[1])
    ]
    return f" {', '.join(parts)}." if parts else ""


def _total_bytes(device: int) -> int | None:
    return next((one.total_bytes for one in devices((device,))), None)
