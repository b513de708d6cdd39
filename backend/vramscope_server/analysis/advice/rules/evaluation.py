"""Advice for a forward pass without backward that keeps its activations: an evaluation without ``torch.no_grad()``.

Condition: allocations of a forward pass without backward exist when the last module's forward ends, and at the peak.
Calculation: the step's peak without these allocations, except the last one (the output).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html"


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if every forward pass has a backward pass."""
    intervals = facts.phase_intervals
    forward, backward = PHASES.index("forward"), PHASES.index("backward")
    phase = intervals.phase
    of_forward = np.flatnonzero(phase == forward)
    # The backward pass of the last interval may come after the recording.
    unpaired = of_forward[(of_forward < len(phase) - 1) & (np.append(phase, -1)[of_forward + 1] != backward)]
    kept = np.zeros(len(facts.trace.lives), np.bool_)
    for one in unpaired:
        kept[_kept_by(facts, int(one))] = True
    if not kept.any():
        return None
    kept_bytes = facts.bytes_of(facts.at_peak[kept[facts.at_peak]])
    after = facts.peak_after(facts.without(kept))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="evaluation",
        sentence=(
            f"A forward pass without backward keeps {amount(kept_bytes)} of activations at the peak of "
            f"{amount(facts.peak_bytes)}. Under torch.no_grad() the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={"held_bytes": kept_bytes, "forwards": len(unpaired), "peak_after_bytes": after},
        source=SOURCE,
    )


def _kept_by(facts: StepFacts, interval: int) -> IntArray:
    """Allocations of a forward pass that exist at its end, except the last one."""
    lives, events = facts.trace.lives, facts.trace.events
    made = np.flatnonzero((facts.phase_intervals.born == interval) & facts.is_of("activations", "temporaries"))
    by_module = made[events.module[lives.alloc_event[made]] >= 0]
    made = by_module if len(by_module) else made
    if not len(made):
        return made
    forward_end = int(lives.alloc_event[made[-1]])
    return made[lives.free_requested_event[made] > forward_end][:-1]
