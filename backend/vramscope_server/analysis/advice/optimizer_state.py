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

from vramscope_server.analysis.advice import foreach
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, Facts
from vramscope_server.analysis.quantities import amount, percent

SOURCE: Final = "https://huggingface.co/docs/bitsandbytes/main/en/optimizers"
LEAST_FRACTION: Final = 0.2
MOMENTS: Final = frozenset(("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum"))
"""of Adam (amsgrad's third among them), SGD, RMSprop and Adagrad, in PyTorch's names"""
LEAST_ELEMENTS: Final = 4096
BLOCK_ELEMENTS: Final = 256
ELEMENT_BYTES: Final = 4


def advise(facts: Facts) -> Advice | None:
    """Advice, or None where the state is small, or of 8 bits."""
    lives = facts.trace.lives
    owned = facts.at_peak[facts.is_of("optimizer")[facts.at_peak]]
    state = owned[np.array([_is_moment(facts.owner(int(row))) for row in owned], np.bool_)]
    held = facts.bytes_of(state)
    if held < LEAST_FRACTION * facts.peak_bytes or any(one["kind"] == "optimizer_8bit" for one in facts.techniques):
        return None
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    if held < facts.bytes_of(parameters):
        return None  # less than one 32-bit copy of 32-bit weights: nothing says that it is of 32 bits
    asked = lives.requested_bytes[state]
    elements = asked // ELEMENT_BYTES
    small = elements < LEAST_ELEMENTS
    would = np.where(small, asked, elements + 4 * -(-elements // BLOCK_ELEMENTS))
    would = -(-would // 512) * 512
    # What the state of the peak loses, it loses at every moment at which it is there.
    sizes = np.zeros(len(lives), np.int64)
    sizes[state] = lives.size_bytes[state] - would
    goes = foreach.advise(facts) is not None
    after = facts.peak_after(facts.lowered(sizes) + (foreach.one_at_a_time(facts) if goes else 0))
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
            "kept_as_they_are": int(small.sum()),
            "foreach_too": goes,
            "peak_after_bytes": after,
            "at_most": True,
        },
        source=SOURCE,
    )


def _is_moment(owner: str | None) -> bool:
    """``exp_avg of h.0.weight`` is one; where names are not known, all state is taken for it."""
    return owner is None or owner.split(" of ")[0] in MOMENTS
