"""Advice for gradients of the last step that exist during the forward pass: ``zero_grad`` is late, or fills with zeros.

Condition: gradients of an earlier step exist at the peak, which is before the end of this step's first backward. They are
freed in this step's forward or backward, or never (``set_to_none=False``).
Calculation: the step's peak without each of them, from the step's start until it is computed again. A gradient that is never
freed is computed again when backward allocates its addend: the first blocks of its size that are allocated and freed there.
Gradients that micro-batches accumulate do not count: they belong to this step.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html"


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if no gradient outlives its step."""
    lives, events = facts.trace.lives, facts.trace.events
    first, last = facts.span
    backward = np.flatnonzero(events.phase[first : last + 1] == PHASES.index("backward"))
    if not len(backward):
        return None
    begins = first + int(backward[0])
    old = facts.is_of("gradients") & (lives.alloc_event < first) & (lives.free_requested_event > first)
    # Gradients that zero_grad frees before the forward pass are freed in time.
    forward = np.flatnonzero(events.phase[first : last + 1] == PHASES.index("forward"))
    old &= lives.free_requested_event > (first + int(forward[0]) if len(forward) else begins)
    rows = np.flatnonzero(old)
    if not len(rows):
        return None
    kept = facts.bytes_of(facts.at_peak[old[facts.at_peak]])
    until = np.minimum(lives.free_requested_event[rows], _recomputed_at(facts, rows, begins))
    after = facts.peak_after(facts.without(old, np.full(len(rows), first), until))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    stays = int(np.count_nonzero(lives.free_requested_event[rows] >= len(events)))
    remedy = "zero_grad(set_to_none=True)" if stays == len(rows) else "zero_grad()"
    return Advice(
        rule="late_clear",
        sentence=(
            f"Gradients of the previous step are {amount(kept)} of {amount(facts.peak_bytes)} "
            f"({percent(kept / facts.peak_bytes)}) at the peak. {remedy} right after the optimizer step lowers the peak by "
            f"{amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={"gradients_bytes": kept, "gradients": len(rows), "never_let_go": stays, "peak_after_bytes": after},
        source=SOURCE,
    )


def _recomputed_at(facts: StepFacts, old: IntArray, begins: int) -> IntArray:
    """Event at which backward computes each gradient again if it was freed before."""
    lives = facts.trace.lives
    _, last = facts.span
    addends = facts.is_of("temporaries") & facts.allocated_in("backward") & facts.in_step()
    until = np.full(len(old), begins)
    for size in np.unique(lives.requested_bytes[old]):
        mine = np.flatnonzero(lives.requested_bytes[old] == size)
        freed = np.sort(
            lives.free_requested_event[addends & (lives.requested_bytes == size) & (lives.alloc_event >= begins)]
        )
        freed = freed[freed <= last][: len(mine)]
        until[mine[: len(freed)]] = freed
    return until
