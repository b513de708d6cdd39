"""Advice for copies of weights in autocast's cache: made without gradients, and kept until the autocast region ends.

Condition: in a run with mixed precision (if its techniques are known) an evaluation allocated half the bytes of at least three
weights, one block for each, and the blocks are still there at the step's peak, when the evaluation is over; so it is for half of
the weights' bytes or more. Copies that are made with gradients belong to the graph and are freed with it.
Calculation: the step's peak without them.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.number_format import amount, percent

SOURCE: Final = "https://docs.pytorch.org/docs/stable/amp.html#torch.autocast"
LEAST_COVERED: Final = 0.5
"""Share of the bytes of all matrices that have such a copy."""
FEWEST: Final = 3
"""Number of copies. One or two results of an evaluation may have such a size by chance."""
MIN_BYTES: Final = 64 << 10
"""Minimum size of a copy. Small results may have the size of a bias by chance."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if no copies outlive an evaluation."""
    copies = _copies(facts)
    if not copies or facts.peak_phase == "eval":
        return None
    chosen = np.zeros(len(facts.trace.lives), np.bool_)
    chosen[copies] = True
    held, after = facts.bytes_of(chosen), facts.peak_after(facts.without(chosen))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="autocast_cache",
        sentence=(
            f"Autocast's cache keeps 16-bit copies of {len(copies)} weights, made without gradients: {amount(held)} of "
            f"{amount(facts.peak_bytes)} at the peak ({percent(held / facts.peak_bytes)}), until its region ends. With "
            "torch.autocast(..., cache_enabled=False), or a region of its own for the evaluation, "
            f"the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={"copies": len(copies), "held_bytes": held, "peak_after_bytes": after},
        source=SOURCE,
    )


def _copies(facts: StepFacts) -> list[int]:
    """Allocations of an evaluation with half the bytes of a weight, one for each weight; none if they are too few."""
    if facts.techniques and all(one["kind"] != "mixed_precision" for one in facts.techniques):
        return []
    sizes = facts.trace.lives.requested_bytes
    weights = Counter(
        int(sizes[row])
        for row in facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
        if sizes[row] >= 2 * MIN_BYTES
    )
    all_bytes = sum(size * count for size, count in weights.items())
    copies = []
    for row in facts.at_peak[facts.allocated_in("eval")[facts.at_peak]].tolist():
        size = 2 * int(sizes[row])
        if weights[size] > 0:
            weights[size] -= 1
            copies.append(row)
    copied_bytes = 2 * sum(int(sizes[row]) for row in copies)
    return copies if len(copies) >= FEWEST and copied_bytes >= LEAST_COVERED * all_bytes else []
