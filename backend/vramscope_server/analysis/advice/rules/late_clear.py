"""Gradients of the last step are kept through the forward: ``zero_grad`` comes too late, or fills with zeros.

Condition: gradients that an earlier step made are held at the peak, and the peak comes before this step's first backward is over.
They are let go in this step's forward or backward, or (``set_to_none=False``) never.
Arithmetic: without them from the step's beginning until each is made anew, the step's peak is what remains. One that is never let
go is made anew where the backward now makes what it adds: the first blocks of its size that come and go there. Gradients that
micro-batches add up are not meant: those are of this step.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.units import amount, percent

Whole = npt.NDArray[np.int64]

SOURCE: Final = "https://docs.pytorch.org/docs/stable/generated/torch.optim.Optimizer.zero_grad.html"


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where no gradient outlives its step."""
    lives, events = facts.trace.lives, facts.trace.events
    first, last = facts.span
    backward = np.flatnonzero(events.phase[first : last + 1] == PHASES.index("backward"))
    if not len(backward):
        return None
    begins = first + int(backward[0])
    old = facts.is_of("gradients") & (lives.alloc_event < first) & (lives.requested_event > first)
    # What zero_grad lets go before the forward begins is in time.
    forward = np.flatnonzero(events.phase[first : last + 1] == PHASES.index("forward"))
    old &= lives.requested_event > (first + int(forward[0]) if len(forward) else begins)
    rows = np.flatnonzero(old)
    if not len(rows):
        return None
    held = facts.bytes_of(facts.at_peak[old[facts.at_peak]])
    until = np.minimum(lives.requested_event[rows], _made_anew(facts, rows, begins))
    after = facts.peak_after(facts.without(old, np.full(len(rows), first), until))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    stays = int(np.count_nonzero(lives.requested_event[rows] >= len(events)))
    remedy = "zero_grad(set_to_none=True)" if stays == len(rows) else "zero_grad()"
    return Advice(
        rule="late_clear",
        sentence=(
            f"Gradients of the step before, {amount(held)} of {amount(facts.peak_bytes)} ({percent(held / facts.peak_bytes)}), "
            f"are still there at the peak. {remedy} right after the optimizer's step lowers the peak by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={"gradients_bytes": held, "gradients": len(rows), "never_let_go": stays, "peak_after_bytes": after},
        source=SOURCE,
    )


def _made_anew(facts: StepFacts, old: Whole, begins: int) -> Whole:
    """For each gradient the event at which the backward would have made it, if it had not been there."""
    lives = facts.trace.lives
    _, last = facts.span
    fresh = facts.is_of("temporaries") & facts.born_in("backward") & facts.in_step()
    until = np.full(len(old), begins)
    for size in np.unique(lives.requested_bytes[old]):
        mine = np.flatnonzero(lives.requested_bytes[old] == size)
        gone = np.sort(lives.requested_event[fresh & (lives.requested_bytes == size) & (lives.alloc_event >= begins)])
        gone = gone[gone <= last][: len(mine)]
        until[mine[: len(gone)]] = gone
    return until
