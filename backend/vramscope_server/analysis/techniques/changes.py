"""What each technique would change in the recorded step; None where it cannot be, or is there already.

The arithmetic of checkpointing, 8-bit state and foreach is that of the advice (analysis/advice), told apart by what goes with the
batch, and not only where it lowers the recorded peak: one technique moves the peak to where another one helps.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import batch, checkpointing, foreach, optimizer_state, weight_copies
from vramscope_server.analysis.techniques.memory_curve import Change, MemoryCurve, Whole, in_step

BODY: Final = [PHASES.index(phase) for phase in ("forward", "backward")]


def checkpointed_blocks(facts: StepFacts, curve: MemoryCurve) -> Change | None:
    """The repeated blocks checkpointed whose activations make the peak of forward and backward."""
    if checkpointing.is_recomputing(facts):
        return None
    first, last = facts.span
    body = np.isin(facts.trace.events.phase[first : last + 1], BODY)
    if not body.any():
        return None
    whole = curve.stays_bytes + curve.goes_bytes
    stems, blocks = checkpointing.chosen(facts, lambda changes: int((whole + in_step(facts, changes))[body].max()))
    if not blocks:
        return None
    words = f"the {len({block.name for block in blocks})} blocks {checkpointing.named(stems)}"
    change = checkpointing.changes(facts, blocks)
    # (a 16-bit copy of a weight is as large for any number of rows)
    stays = checkpointing.changes(facts, blocks, weight_copies.lifetimes_of(facts))
    return Change(in_step(facts, stays), in_step(facts, change - stays), words)


def accumulation(facts: StepFacts) -> Change | None:
    """What micro-batches change beside the parts of a batch: all but the first have the gradients in the whole step, and each new
    one beside the sum that it is added to. None where no gradient is known, or where rows are compared with one another."""
    lives = facts.trace.lives
    made = np.flatnonzero(facts.is_of("gradients") & facts.in_step() & facts.born_in("backward"))
    first, last = facts.span
    forward = np.flatnonzero(facts.trace.events.phase[first : last + 1] == PHASES.index("forward"))
    if not len(made) or not len(forward) or compares_rows(facts):
        return None
    size, born = lives.size_bytes[made], lives.alloc_event[made]
    change = np.zeros(len(facts.trace.events) + 2, np.int64)
    change[first + int(forward[0]) + 1] += size.sum()
    # The new one is let go when it has been added: its function's other results are there by then.
    np.subtract.at(change, _next_allocation(lives.alloc_event, born, len(facts.trace.events)) + 1, size)
    return Change(stays_bytes=in_step(facts, np.cumsum(change[:-1])))


def compares_rows(facts: StepFacts) -> bool:
    """Something has a value for each pair of rows, as in a contrastive loss."""
    rows = batch.rows_of(facts)
    return rows is not None and bool(batch.pair_bytes(facts, rows).max() >= batch.LEAST_PAIRS * facts.peak_bytes)


def eight_bit_state(facts: StepFacts) -> Change | None:
    """Moments of 8 bits, by an optimizer that steps one parameter at a time."""
    state = optimizer_state.moments(facts)
    if not len(state):
        return None
    less = optimizer_state.changes(facts, state, optimizer_state.eight_bit_bytes(facts, state))
    return Change(stays_bytes=in_step(facts, less + foreach.changes(facts)))


def one_parameter_at_a_time(facts: StepFacts) -> Change | None:
    """``foreach=False``. None for an optimizer that has nothing of the kind (LBFGS)."""
    state = facts.at_peak[facts.is_of("optimizer")[facts.at_peak]]
    if len(state) and not any(optimizer_state.is_moment(facts.owner(int(life))) for life in state):
        return None
    return Change(stays_bytes=in_step(facts, foreach.changes(facts)))


def _next_allocation(allocations: Whole, events: Whole, end: int) -> Whole:
    made = np.append(allocations[allocations >= 0], end)
    return made[np.minimum(np.searchsorted(made, events, side="right"), len(made) - 1)]
