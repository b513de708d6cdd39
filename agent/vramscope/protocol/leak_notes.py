"""Findings that are listed, but are no badge, no alert and no line on the terminal: notes, and memory of the host."""

from __future__ import annotations

from typing import Final

from vramscope.protocol.messages import Leak, Scan
from vramscope.protocol.series import OVERLAPS

GROWING: Final = ("growing", "growing-eval", "tensor-growth", "cycle")
"""Kinds that grow, or that last until the garbage collector runs."""
MIN_SHARE: Final = 0.02
"""Smallest share of the run's peak that makes a finding with a bound worth a change."""
BOUNDED_MIN_SHARE: Final = 0.05
"""The same for what is emptied again and again, or becomes full: that is most likely meant, as in a metric."""


def is_note(leak: Leak, run_peak_bytes: int | None) -> bool:
    """True for a finding that does not grow without end and raises the peak by nothing or little.

    run_peak_bytes   highest allocated memory of the run so far; None where it is unknown, on the CPU say
    """
    if leak.kind in (*OVERLAPS, "idle-optimizer"):
        cost_bytes = leak.peak_effect_bytes or 0
        return cost_bytes == 0 or cost_bytes < MIN_SHARE * (run_peak_bytes or 0)
    if leak.emptied_after is None and leak.full_bytes is None:
        return False
    return max(leak.held_bytes, leak.full_bytes or 0) < BOUNDED_MIN_SHARE * (run_peak_bytes or 0)


def is_leak(leak: Leak) -> bool:
    """True for a finding that grows, or a reference cycle; False for what is retained too long, or emptied again and again."""
    return leak.kind in GROWING and leak.emptied_after is None


def is_on_host(leak: Leak) -> bool:
    """Kept in the host's memory by a training on a card: no peak of the card falls without it. (On the CPU none is known.)"""
    on_cpu = bool(leak.examples) and all(example.endswith(" on cpu") for example in leak.examples)
    return leak.kind in ("tensor-growth", "cycle") and leak.peak_effect_bytes == 0 and on_cpu


def was_needed(scan: Scan) -> bool:
    """False for a report without a scan, because GPU memory had not risen at a scheduled step."""
    return scan.tensors > 0


def is_cut(leak: Leak) -> bool:
    """Of a tensor that gets longer: the code keeps only a slice of it, so that it has a bound."""
    return bool(leak.why) and leak.why[-1].reason == "is-cut"


def slows_down(leak: Leak) -> bool:
    """Of a container that may fill up: it takes ever fewer entries."""
    return bool(leak.why) and leak.why[-1].reason == "slows-down"
