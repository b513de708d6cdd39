"""Change of the recorded step by each technique; None if it does not apply, or is in use already.

Checkpointing, 8-bit state and foreach use the calculations of the advice rules (analysis/advice), split into constant bytes
and bytes that scale with the batch. A change counts even if it does not lower the recorded peak: another technique may move
the peak to where it helps.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules import batch, checkpointing, foreach, optimizer_state, weight_copies
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.techniques.memory_curve import CurveChange, MemoryCurve, in_step

BODY: Final = [PHASES.index(phase) for phase in ("forward", "backward")]


def checkpointed_blocks(facts: StepFacts, curve: MemoryCurve) -> CurveChange | None:
    """Checkpoint the repeated blocks whose activations make the peak of forward and backward."""
    if checkpointing.is_recomputing(facts):
        return None
    first, last = facts.span
    body = np.isin(facts.trace.events.phase[first : last + 1], BODY)
    if not body.any():
        return None
    whole = curve.constant_bytes + curve.scaled_bytes
    stems, blocks = checkpointing.chosen(facts, lambda changes: int((whole + in_step(facts, changes))[body].max()))
    if not blocks:
        return None
    blocks_text = f"the {len({block.name for block in blocks})} blocks {checkpointing.block_names(stems)}"
    change = checkpointing.changes(facts, blocks)
    # The size of a 16-bit weight copy does not depend on the batch.
    constant = checkpointing.changes(facts, blocks, weight_copies.allocations_of_copies(facts))
    return CurveChange(in_step(facts, constant), in_step(facts, change - constant), blocks_text)


def accumulation(facts: StepFacts) -> CurveChange | None:
    """Change by micro-batches, besides the smaller batch: gradients exist in the whole step, except in the first micro-batch,
    and each new gradient exists next to the sum to which it is added.

    None if no gradients are known, or the loss compares samples.
    """
    lives = facts.trace.lives
    made = np.flatnonzero(facts.is_of("gradients") & facts.in_step() & facts.allocated_in("backward"))
    first, last = facts.span
    forward = np.flatnonzero(facts.trace.events.phase[first : last + 1] == PHASES.index("forward"))
    if not len(made) or not len(forward) or compares_rows(facts):
        return None
    size, allocated = lives.size_bytes[made], lives.alloc_event[made]
    change = np.zeros(len(facts.trace.events) + 2, np.int64)
    change[first + int(forward[0]) + 1] += size.sum()
    # The new gradient is freed after the addition, when the other results of its function exist.
    results = lives.alloc_event[~batch.workspaces_of_one_product(facts)]
    np.subtract.at(change, _next_allocation(results, allocated, len(facts.trace.events)) + 1, size)
    return CurveChange(constant_bytes=in_step(facts, np.cumsum(change[:-1])))


def compares_rows(facts: StepFacts) -> bool:
    """Whether tensors have one value per pair of rows, as in a contrastive loss.

    Their size alone proves nothing, because a layer may be as wide as the batch: no layer may make tensors of that size.
    """
    rows = batch.rows_of(facts)
    if rows is None or batch.pair_bytes(facts, rows).max() < batch.MIN_PAIRS * facts.peak_bytes:
        return False
    return not np.isin(batch.pair_sizes(rows), sizes_of_layers(facts)).any()


def sizes_of_layers(facts: StepFacts) -> IntArray:
    """Sizes of the tensors that modules without parts of their own allocate in their forward passes.

    Without cuBLAS's workspaces: the first layer that needs one allocates it, and it is no output.
    """
    lives, events, modules = facts.trace.lives, facts.trace.events, facts.trace.modules
    parents = {name[:at] for name in modules for at, letter in enumerate(name) if letter == "."}
    is_layer = np.array(
        [name.rpartition(".")[2] != "" and name not in parents for name in modules] or [False], np.bool_
    )
    made = np.flatnonzero((lives.alloc_event >= 0) & ~facts.is_of("workspaces"))
    module = events.module[lives.alloc_event[made]]
    return np.unique(lives.requested_bytes[made[(module >= 0) & is_layer[np.maximum(module, 0)]]])


def eight_bit_state(facts: StepFacts) -> CurveChange | None:
    """Use 8-bit moments, with an optimizer that steps one parameter at a time."""
    state = optimizer_state.moments(facts)
    if not len(state):
        return None
    less = optimizer_state.changes(facts, state, optimizer_state.eight_bit_bytes(facts, state))
    return CurveChange(constant_bytes=in_step(facts, less + foreach.changes(facts)))


def one_parameter_at_a_time(facts: StepFacts) -> CurveChange | None:
    """Set ``foreach=False``. None for an optimizer without this option (LBFGS)."""
    state = facts.at_peak[facts.is_of("optimizer")[facts.at_peak]]
    if len(state) and not any(optimizer_state.is_moment(facts.owner(int(life))) for life in state):
        return None
    return CurveChange(constant_bytes=in_step(facts, foreach.changes(facts)))


def _next_allocation(allocations: IntArray, events: IntArray, end: int) -> IntArray:
    made = np.append(allocations[allocations >= 0], end)
    return made[np.minimum(np.searchsorted(made, events, side="right"), len(made) - 1)]
