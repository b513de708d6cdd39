"""Advice to use 8-bit optimizer state if the state is a large part of the peak.

Condition: the state that 8-bit optimizers can store (moments; no LBFGS history, no weight copies) is 20 % of the peak or
more, and has 32 bits.
Calculation, per tensor: with 4096 elements or more, 4 bytes per element become 1, plus 4 for each 256 elements (the scale);
smaller tensors stay the same. The state exists at all times after the first step, so the peak falls by the same amount. 8-bit
optimizers step one parameter at a time, without foreach temporaries (as in foreach.py). Embeddings keep 32 bits with
transformers' Trainer; the sentence says so, but the number does not include it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.advice.rules import foreach
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent

SOURCE: Final = "https://huggingface.co/docs/bitsandbytes/main/en/optimizers"
MIN_FRACTION: Final = 0.2
MOMENTS: Final = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum"))
"""PyTorch's names of the moments of Adam (with amsgrad), SGD, RMSprop and Adagrad."""
MIN_ELEMENTS: Final = 4096
BLOCK_ELEMENTS: Final = 256
ELEMENT_BYTES: Final = 4


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if the state is small, or has 8 bits already."""
    state = moments(facts)
    state_bytes = facts.bytes_of(state)
    if state_bytes < MIN_FRACTION * facts.peak_bytes:
        return None
    eight_bit = eight_bit_bytes(facts, state)
    with_foreach = foreach.advise(facts) is not None
    after = facts.peak_after(changes(facts, state, eight_bit) + (foreach.one_at_a_time(facts) if with_foreach else 0))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="optimizer_state",
        sentence=(
            f"Optimizer state is {amount(state_bytes)} of {amount(facts.peak_bytes)} ({percent(state_bytes / facts.peak_bytes)}). "
            f"With an 8-bit optimizer it is {amount(int(eight_bit.sum()))}"
            f"{', and there are no temporary copies of all parameters (foreach)' if with_foreach else ''}: the peak falls by "
            f"{amount(saves)}. If there are embeddings that keep 32 bits, as with transformers' Trainer, it falls by less."
        ),
        saves_bytes=saves,
        evidence={
            "state_bytes": state_bytes,
            "eight_bit_bytes": int(eight_bit.sum()),
            "tensors": len(state),
            "kept_as_they_are": int((facts.trace.lives.requested_bytes[state] < MIN_ELEMENTS * ELEMENT_BYTES).sum()),
            "foreach_too": with_foreach,
            "peak_after_bytes": after,
            "at_most": True,
        },
        source=SOURCE,
    )


def moments(facts: StepFacts) -> IntArray:
    """Allocations of 32-bit moments at the peak; none if the state has 8 bits, or may have 16."""
    owned = facts.at_peak[facts.is_of("optimizer")[facts.at_peak]]
    state = owned[np.array([is_moment(facts.owner(int(row))) for row in owned], np.bool_)]
    # state smaller than a 32-bit copy of its weights may have fewer than 32 bits
    if facts.bytes_of(state) < facts.bytes_of(_updated(facts, state)) or any(
        one["kind"] == "optimizer_8bit" for one in facts.techniques
    ):
        return state[:0]
    return state


def _updated(facts: StepFacts, state: IntArray) -> IntArray:
    """Parameters that this state belongs to, by name; all parameters where names are unknown.

    A reference model has none, and may have the same names: each name counts once.
    """
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    names = {(facts.owner(int(row)) or "").partition(" of ")[2] for row in state}
    named = {facts.owner(int(row)): int(row) for row in parameters if facts.owner(int(row)) in names}
    return np.array(list(named.values()), np.int64) if named else parameters


def eight_bit_bytes(facts: StepFacts, state: IntArray) -> IntArray:
    """Bytes of these allocations with 8 bits per element."""
    requested = facts.trace.lives.requested_bytes[state]
    elements = requested // ELEMENT_BYTES
    smaller = np.where(elements < MIN_ELEMENTS, requested, elements + 4 * -(-elements // BLOCK_ELEMENTS))
    return -(-smaller // 512) * 512


def changes(facts: StepFacts, state: IntArray, smaller_bytes: IntArray) -> IntArray:
    """Change of allocated bytes after each event if the state has these sizes."""
    less = np.zeros(len(facts.trace.lives), np.int64)
    less[state] = facts.trace.lives.size_bytes[state] - smaller_bytes
    return facts.lowered(less)


def is_moment(owner: str | None) -> bool:
    """Whether an owner's name is that of a moment, like ``exp_avg of h.0.weight``. True if names are unknown."""
    return owner is None or owner.split(" of ")[0] in MOMENTS
