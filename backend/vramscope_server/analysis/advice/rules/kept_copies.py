"""Advice for copies of the weights on the device: an average, the best checkpoint so far, or a reference model.

Condition: tensors at the peak that are older than the step, neither gradients nor optimizer state, have the sizes of nine
tenths of the trained parameters, once or several times. They belong to another module with the same names, or to no known owner.
Without an owner the sizes are the only evidence: nine tenths of all tensors must be there too, the small ones included.
Workspaces of cuBLAS or a replay buffer have the size of a large weight by chance, and never the sizes of all its biases.
Calculation: the step's peak without them. Their purpose is unknown: a teacher must stay, and an average that is updated in
each step is cheaper on the device.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts, Whole
from vramscope_server.analysis.ownership.owners import NOBODY
from vramscope_server.analysis.units import amount, percent

SOURCE: Final = "tensors that no step uses need not be on the device"
COVERED: Final = 0.9
"""Minimum share of the trained bytes that a copy covers. A copy may lack tied embeddings, or buffers."""

LEAST_COPIED: Final = 8
"""Tensors of a copy without an owner. Fewer may have these sizes by chance."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if there is no whole copy."""
    lives = facts.trace.lives
    trained, others = _parameters(facts)
    if not len(trained):
        return None
    unowned = facts.at_peak[(facts.ownership.category == NOBODY)[facts.at_peak] & ~facts.in_step()[facts.at_peak]]
    found = [(_copies(lives.requested_bytes, trained, others), True)]
    without_owner = _copies(lives.requested_bytes, trained, unowned)
    if (
        len(without_owner) >= max(LEAST_COPIED, COVERED * len(trained))
        and len(np.unique(lives.requested_bytes[trained])) > 1
    ):
        found.append((without_owner, False))
    copies = np.concatenate([of_pool for of_pool, _ in found])
    if not len(copies):
        return None
    mask = np.zeros(len(lives), np.bool_)
    mask[copies] = True
    copied, after = facts.bytes_of(copies), facts.peak_after(facts.without(mask))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    named = [of_pool for of_pool, is_named in found if is_named and len(of_pool)]
    where = (
        f"{_root(facts.owner(int(named[0][0])))}, another model" if named else "tensors of no module and no optimizer"
    )
    return Advice(
        rule="kept_copies",
        sentence=(
            f"Copies of the trained weights ({where}) are {amount(copied)} of {amount(facts.peak_bytes)} "
            f"({percent(copied / facts.peak_bytes)}). A weight average or the best checkpoint so far can stay on the host "
            f"(tensor.cpu()): the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={
            "held_bytes": copied,
            "tensors": len(copies),
            "trained_bytes": facts.bytes_of(trained),
            "peak_after_bytes": after,
        },
        source=SOURCE,
    )


def _parameters(facts: StepFacts) -> tuple[Whole, Whole]:
    """Trained parameters, and parameters of other modules with the same names, that exist at the peak."""
    owned = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    names = [facts.owner(int(life)) or "" for life in owned]
    learns = {name.split(" of ", 1)[1] for name in facts.trace.owner_names if " of " in name}
    trained = np.array([name in learns for name in names], np.bool_)
    # With several models each name starts with the model's class.
    known_names = learns | {name.partition(".")[2] for name in learns if name[:1].isupper()}
    same_name = np.array([_has_name(name, known_names) for name in names], np.bool_)
    return owned[trained], owned[~trained & same_name]


def _has_name(name: str, known_names: set[str]) -> bool:
    while name:
        name = name.partition(".")[2]
        if name in known_names:
            return bool(name)
    return False


def _copies(size_bytes: Whole, trained: Whole, pool: Whole) -> Whole:
    """Allocations of the pool that form whole copies of the trained ones; the oldest of each size."""
    wanted, there = Counter(size_bytes[trained].tolist()), Counter(size_bytes[pool].tolist())
    total = sum(size * count for size, count in wanted.items())
    copies = 0
    while (
        total > 0
        and sum(size * count for size, count in wanted.items() if there[size] >= (copies + 1) * count)
        >= COVERED * total
    ):
        copies += 1
    left = {size: copies * count for size, count in wanted.items() if there[size] >= copies * count}
    chosen = []
    for life in pool.tolist():
        size = int(size_bytes[life])
        if left.get(size, 0) > 0:
            left[size] -= 1
            chosen.append(life)
    return np.array(chosen, np.int64)


def _root(name: str | None) -> str:
    return (name or "").partition(".")[0]
