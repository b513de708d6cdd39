"""The loss's head: logits, their log-softmax and its gradient, several blocks of one size around the peak.

Condition: of what the step has made, the largest blocks at the peak are three or more of one size, the first of them made
in the last quarter of a forward, and one of them by a cross-entropy or log-softmax, as its stack says. Blocks of half the size
are the same logits and their gradient in 16 bits (autocast), where the body of the model made none of that size.
Arithmetic: a cross-entropy that works in chunks, or is fused with the head, never has them whole: the step's peak is reckoned
without all of them. That is the most it can save ("up to"), for a chunk remains.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.units import amount

SOURCE: Final = "https://arxiv.org/abs/2411.09009"
"""Wijmans et al. (2024), Cut Your Losses in Large-Vocabulary Language Models"""
LOSSES: Final = frozenset(("cross_entropy", "log_softmax", "nll_loss"))
"""functions of torch.nn.functional"""
LEAST_BLOCKS: Final = 3
TAIL: Final = 0.25
"""of the forward's allocations, in which the head and the loss are"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where no blocks of one size stand out."""
    lives, intervals = facts.trace.lives, facts.phase_intervals
    loose = facts.is_of("activations", "temporaries") & facts.in_step()
    held = facts.at_peak[loose[facts.at_peak]]
    if not len(held):
        return None
    size = int(lives.requested_bytes[held].max())
    if np.count_nonzero(lives.requested_bytes[held] == size) < LEAST_BLOCKS:
        return None
    forward = facts.born_in("forward")
    same = loose & (lives.requested_bytes == size)
    of_forward = np.flatnonzero(same & forward)
    in_loss = np.flatnonzero(same & facts.goes_through(LOSSES))
    if not len(of_forward) or not len(in_loss):
        return None
    last_forward = intervals.born[of_forward] == intervals.born[of_forward[-1]]  # of several micro-batches
    made = np.flatnonzero(forward & (intervals.born == intervals.born[of_forward[-1]]))
    first_of_head = int(of_forward[last_forward][0])
    behind = np.count_nonzero(made >= first_of_head) / len(made)
    if behind > TAIL:
        return None  # they are made all along the forward: activations of the model's body
    halves = loose & (lives.requested_bytes * 2 == size)
    if not halves[made[: len(made) - int(len(made) * TAIL)]].any():  # (else they may be the body's)
        same |= halves
        first_of_head = int(made[same[made]][0])
    blocks = facts.at_peak[same[facts.at_peak]]
    whole = np.count_nonzero(lives.requested_bytes[blocks] == size)
    half = f" and {len(blocks) - whole} of half of that, in 16 bits," if len(blocks) > whole else ""
    total = facts.bytes_of(blocks)
    after = facts.peak_after(facts.without(same))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    module = facts.module_of(first_of_head)
    file, line = facts.line_of(int(in_loss[-1]))
    where = f" of {module}" if module else ""
    phase = facts.peak_phase or "step"
    return Advice(
        rule="loss_head",
        sentence=(
            f"The peak is in the {phase}{where}: logits, log-softmax and their gradient, {whole} blocks of {amount(size)}"
            f"{half or ','} are {amount(total)} of {amount(facts.peak_bytes)}. A fused or chunked cross-entropy removes up to "
            f"{amount(saves)}."
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
