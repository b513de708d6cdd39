"""A forward that no backward follows keeps its activations: an evaluation without ``torch.no_grad()``.

Condition: what a forward made that no backward follows is still there when the last module's forward is over, and is part of
the peak.
Arithmetic: without all that, but for what was made last (the output), the step's peak is what remains.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.units import amount

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.no_grad.html"


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where every forward has its backward."""
    intervals = facts.phase_intervals
    forward, backward = PHASES.index("forward"), PHASES.index("backward")
    phase = intervals.phase
    of_forward = np.flatnonzero(phase == forward)
    # The last interval of all may have its backward behind the recording.
    alone = of_forward[(of_forward < len(phase) - 1) & (np.append(phase, -1)[of_forward + 1] != backward)]
    kept = np.zeros(len(facts.trace.lives), np.bool_)
    for one in alone:
        kept[_kept_by(facts, int(one))] = True
    if not kept.any():
        return None
    held = facts.bytes_of(facts.at_peak[kept[facts.at_peak]])
    after = facts.peak_after(facts.without(kept))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="evaluation",
        sentence=(
            f"A forward that no backward follows keeps {amount(held)} of activations at the peak of {amount(facts.peak_bytes)}. "
            f"Under torch.no_grad() the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={"held_bytes": held, "forwards": len(alone), "peak_after_bytes": after},
        source=SOURCE,
    )


def _kept_by(facts: StepFacts, interval: int) -> npt.NDArray[np.int64]:
    """Allocations of a forward pass that exist at its end, except the last one."""
    lives, events = facts.trace.lives, facts.trace.events
    made = np.flatnonzero((facts.phase_intervals.born == interval) & facts.is_of("activations", "temporaries"))
    by_module = made[events.module[lives.alloc_event[made]] >= 0]
    made = by_module if len(by_module) else made
    if not len(made):
        return made
    over = int(lives.alloc_event[made[-1]])
    return made[lives.requested_event[made] > over][:-1]
