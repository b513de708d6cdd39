"""Lines at the end of a run on the terminal: its peak, what it was made of, and whether a leak was found."""

from __future__ import annotations

from typing import Final

from vramscope.oom_diagnosis.prose import amount
from vramscope.process import terminal
from vramscope.process.identity import devices
from vramscope.protocol import messages, series
from vramscope.protocol.leak_notes import is_leak, is_note, is_on_host
from vramscope.sampling.highest_step import HighestStep

WORDS: Final = {"optimizer": "optimizer state", "activations": "activations and temporaries"}
"""Categories in other words than their own."""
MIN_SHARE: Final = 0.05
"""Smallest share of the peak that is listed."""


def print_summary(
    highest: HighestStep | None, scan: messages.Scan | None, url: str, *, rises: bool, rank: int | None
) -> None:
    """Print two or three lines; nothing for a run without a step on a GPU.

    rises   memory after each step does
    rank    of several; None: there is one
    """
    if highest is None or not terminal.speaks_for_host():
        return
    of_rank = "" if rank is None else f"Rank {rank}: "
    terminal.say(of_rank + peak_line(highest, _total_bytes(highest.device)))
    if leaks := leak_line(scan, highest.allocated_bytes, rises=rises):
        terminal.say(of_rank + leaks)
    terminal.say(f"Details: {url}")


def peak_line(highest: HighestStep, total_bytes: int | None) -> str:
    """``Peak: 5.2 GiB allocated, 6.0 GiB reserved of 24.0 GiB, in step 120 (backward). 61 % activations, 20 % parameters.``"""
    of = "" if total_bytes is None else f" of {amount(total_bytes)}"
    on = f" on cuda:{highest.device}" if highest.device > 0 else ""
    phase = f" ({series.phase_name(highest.phase)})" if highest.is_phase_known else ""
    peak = f"Peak: {amount(highest.allocated_bytes)} allocated, {amount(highest.reserved_bytes)} reserved{of}{on}"
    when = "after the last step" if highest.step is None else f"in step {highest.step:,}"
    return f"{peak}, {when}{phase}.{_parts(highest)}"


def leak_line(scan: messages.Scan | None, peak_bytes: int, *, rises: bool = False) -> str:
    """Number of leaks, or that a complete scan found none, and the largest finding.

    What is retained too long, or emptied again and again, is no leak. Empty if nothing is known, if memory rises all the same,
    and if only the host's memory is retained.
    """
    if scan is None:
        return ""
    on_device = [leak for leak in scan.leaks if not is_on_host(leak)]
    findings = sorted((leak for leak in on_device if not is_note(leak, peak_bytes)), key=lambda leak: -leak.held_bytes)
    leaks = [leak for leak in findings if is_leak(leak)]
    if leaks:
        found = "1 leak found" if len(leaks) == 1 else f"{len(leaks):,} leaks found, the largest"
        return f"{found}: {leaks[0].name} retains {amount(leaks[0].held_bytes)}."
    unsure = rises or scan.not_scanned or len(on_device) < len(scan.leaks)
    none = "" if unsure else f"No leak found at the last scan (step {scan.step:,})."
    return " ".join(filter(None, [none, *(_held(leak) for leak in findings[:1])]))


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
