"""Advice for the head of the loss: logits, their log-softmax and its gradient, several blocks of one size at the peak.

Condition: the largest blocks of the step at the peak are three or more of one size. The first of them was allocated in the
last quarter of a forward pass, and one of them by a cross-entropy or log-softmax, according to its stack. Tensor methods
(``logits.log_softmax(-1)``) have no function in the stack; there one block must have been allocated outside of any module, and
all other activations of the forward pass must be far smaller, as beside a vocabulary. Blocks of half the
size are logits and their gradient in 16 bits (autocast), if the body of the model allocated none of that size.
Calculation: the step's peak without all of them. A chunked or fused cross-entropy never allocates them as a whole. This is
the maximum saving ("up to"), because a chunk remains.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import phase_place
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount

SOURCE: Final = "https://arxiv.org/abs/2411.09009"
"""Wijmans et al. (2024), Cut Your Losses in Large-Vocabulary Language Models"""
LOSSES: Final = frozenset(("cross_entropy", "log_softmax", "nll_loss"))
"""Functions of torch.nn.functional."""
MIN_BLOCKS: Final = 3
AS_WIDE_AS_A_VOCABULARY: Final = 4
"""Ratio of such a block to the largest other activation of the forward pass."""
TAIL: Final = 0.25
"""Last share of the forward's allocations, which belongs to the head and the loss."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if there are no such blocks of one size."""
    lives, intervals = facts.trace.lives, facts.phase_intervals
    unowned = facts.is_of("activations", "temporaries") & facts.in_step()
    largest = facts.at_peak[unowned[facts.at_peak]]
    if not len(largest):
        return None
    size = int(lives.requested_bytes[largest].max())
    if np.count_nonzero(lives.requested_bytes[largest] == size) < MIN_BLOCKS:
        return None
    forward = facts.allocated_in("forward")
    same = unowned & (lives.requested_bytes == size)
    of_forward = np.flatnonzero(same & forward)
    in_loss = np.flatnonzero(same & facts.goes_through(LOSSES))
    if not len(of_forward):
        return None
    last_forward = intervals.born[of_forward] == intervals.born[of_forward[-1]]  # of several micro-batches
    made = np.flatnonzero(forward & (intervals.born == intervals.born[of_forward[-1]]))
    first_of_head = int(of_forward[last_forward][0])
    tail = np.count_nonzero(made >= first_of_head) / len(made)
    if tail > TAIL:
        return None  # blocks of the whole forward pass: activations of the model's body
    is_named = len(in_loss) > 0
    if not is_named:
        in_loss = _of_loss_code(facts, made[made > first_of_head], size)
        others = lives.requested_bytes[made][lives.requested_bytes[made] != size]
        if (
            facts.module_of(first_of_head) is None
            or not len(in_loss)
            or AS_WIDE_AS_A_VOCABULARY * others.max(initial=0) > size
        ):
            return None
    halves = unowned & (lives.requested_bytes * 2 == size)
    # Otherwise these operations may belong to the body of the model.
    if not halves[made[: len(made) - int(len(made) * TAIL)]].any():
        same |= halves
        first_of_head = int(made[same[made]][0])
    blocks = facts.at_peak[same[facts.at_peak]]
    whole = np.count_nonzero(lives.requested_bytes[blocks] == size)
    half = f" and {len(blocks) - whole} of half that size, in 16 bits," if len(blocks) > whole else ""
    total = facts.bytes_of(blocks)
    in_any_step = facts.is_of("activations", "temporaries") & np.isin(
        lives.requested_bytes, lives.requested_bytes[np.flatnonzero(same)]
    )
    after = facts.peak_after(facts.without(in_any_step))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    module = facts.module_of(first_of_head)
    file, line = facts.line_of(int(in_loss[-1]))
    where = f" of {module}" if module else ""
    phase = facts.peak_phase
    place = "" if phase in (None, "other") else f"The peak is {phase_place(phase)}. "
    what = (
        f"Logits{where}, log-softmax and their gradient"
        if is_named
        else f"The output{where} and what the loss computes from it"
    )
    fix = "A fused or chunked cross-entropy" if is_named else "A loss in chunks, or of only the positions that matter,"
    return Advice(
        rule="loss_head",
        sentence=(
            f"{place}{what}, {whole} blocks of {amount(size)}"
            f"{half or ','} are {amount(total)} of {amount(facts.peak_bytes)}. {fix} saves up to {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={
            "block_bytes": size,
            "blocks": int(whole),
            "half_blocks": int(len(blocks) - whole),
            "held_bytes": total,
            "peak_after_bytes": after,
            "at_most": True,
        },
        source=SOURCE,
        file=file,
        line=line,
        module=module,
    )


def _of_loss_code(facts: StepFacts, allocations: IntArray, size: int) -> IntArray:
    """Return the blocks of this size that were allocated outside of any module."""
    of_size = allocations[facts.trace.lives.requested_bytes[allocations] == size]
    outside: IntArray = of_size[np.array([not facts.module_of(int(row)) for row in of_size], np.bool_)]
    return outside
