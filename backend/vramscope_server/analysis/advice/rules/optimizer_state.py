"""The optimizer's state is a large part of the peak: what 8-bit state would take instead.

Condition: the state that 8-bit optimizers have a like of (moments; no history of LBFGS's, no copy of the weights) is 20 % of the
peak or more, and is not of 8 bits yet.
Arithmetic, tensor by tensor, on the states that the agent saw: of 4096 elements or more, 4 bytes become 1, and 4 for each 256
elements (the block's scale); smaller ones stay as they are. The state is there at every moment after the first step, so that the
peak falls by as much. 8-bit optimizers step parameter by parameter: foreach temporaries go too (as in foreach.py). Embeddings stay
in 32 bits with transformers' Trainer; that is said, not reckoned.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts, Whole
from vramscope_server.analysis.advice.rules import foreach
from vramscope_server.analysis.units import amount, percent

SOURCE: Final = "https://huggingface.co/docs/bitsandbytes/main/en/optimizers"
LEAST_FRACTION: Final = 0.2
MOMENTS: Final = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum"))
"""of Adam (amsgrad's third among them), SGD, RMSprop and Adagrad, in PyTorch's names"""
LEAST_ELEMENTS: Final = 4096
BLOCK_ELEMENTS: Final = 256
ELEMENT_BYTES: Final = 4


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where the state is small, or of 8 bits."""
    state = moments(facts)
    held = facts.bytes_of(state)
    if held < LEAST_FRACTION * facts.peak_bytes:
        return None
    would = eight_bit_bytes(facts, state)
    goes = foreach.advise(facts) is not None
    after = facts.peak_after(changes(facts, state, would) + (foreach.one_at_a_time(facts) if goes else 0))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="optimizer_state",
        sentence=(
            f"The optimizer's state is {amount(held)} of {amount(facts.peak_bytes)} ({percent(held / facts.peak_bytes)}). An 8-bit "
            f"optimizer would hold {amount(int(would.sum()))}"
            f"{', and step without foreach temporaries' if goes else ''}: the peak falls by {amount(saves)} (less where embeddings "
            "are kept in 32 bits, as transformers' Trainer does)."
        ),
        saves_bytes=saves,
        evidence={
            "state_bytes": held,
            "eight_bit_bytes": int(would.sum()),
            "tensors": len(state),
            "kept_as_they_are": int((facts.trace.lives.requested_bytes[state] < LEAST_ELEMENTS * ELEMENT_BYTES).sum()),
            "foreach_too": goes,
            "peak_after_bytes": after,
            "at_most": True,
        },
        source=SOURCE,
    )


def moments(facts: StepFacts) -> Whole:
    """The lives of 32-bit state at the peak that 8-bit optimizers have a like of; none where it is of 8 bits, or may be of 16."""
    owned = facts.at_peak[facts.is_of("optimizer")[facts.at_peak]]
    state = owned[np.array([is_moment(facts.owner(int(row))) for row in owned], np.bool_)]
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    # (less than one 32-bit copy of 32-bit weights: nothing says that it is of 32 bits)
    if facts.bytes_of(state) < facts.bytes_of(parameters) or any(
        one["kind"] == "optimizer_8bit" for one in facts.techniques
    ):
        return state[:0]
    return state


def eight_bit_bytes(facts: StepFacts, state: Whole) -> Whole:
    """What each of these lives would take with 8 bits an element."""
    asked = facts.trace.lives.requested_bytes[state]
    elements = asked // ELEMENT_BYTES
    would = np.where(elements < LEAST_ELEMENTS, asked, elements + 4 * -(-elements // BLOCK_ELEMENTS))
    return -(-would // 512) * 512


def changes(facts: StepFacts, state: Whole, would_bytes: Whole) -> Whole:
    """What allocated bytes change by, after each event: what the state of the peak loses, it loses wherever it is there."""
    less = np.zeros(len(facts.trace.lives), np.int64)
    less[state] = facts.trace.lives.size_bytes[state] - would_bytes
    return facts.lowered(less)


def is_moment(owner: str | None) -> bool:
    """``exp_avg of h.0.weight`` is one; where names are not known, all state is taken for it."""
    return owner is None or owner.split(" of ")[0] in MOMENTS
