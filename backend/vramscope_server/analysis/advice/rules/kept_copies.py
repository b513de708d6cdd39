"""Copies of the weights that lie beside them: an average of them, the best checkpoint so far, a model to compare with.

Condition: at the peak there are tensors older than the step, no gradient and no state of an optimizer among them, in the sizes of
nine tenths of what is trained, once or more often: those of another module by the same names, or of no known owner at all.
Arithmetic: the step's peak without them. What they are for is not known: a teacher must stay, and an average that is brought up to
date in each step is cheaper to keep on the card.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts, Whole
from vramscope_server.analysis.ownership.owners import NOBODY
from vramscope_server.analysis.units import amount, percent

SOURCE: Final = "what no step computes with need not be on the card"
COVERED: Final = 0.9
"""of the bytes that are trained: a loop may keep its copy without embeddings that are tied, or without buffers"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where there is no whole copy."""
    lives = facts.trace.lives
    trained, others = _parameters(facts)
    if not len(trained):
        return None
    loose = facts.at_peak[(facts.ownership.category == NOBODY)[facts.at_peak] & ~facts.in_step()[facts.at_peak]]
    found = [(_copies(lives.requested_bytes, trained, pool), pool is others) for pool in (others, loose)]
    copies = np.concatenate([of_pool for of_pool, _ in found])
    if not len(copies):
        return None
    mask = np.zeros(len(lives), np.bool_)
    mask[copies] = True
    held, after = facts.bytes_of(copies), facts.peak_after(facts.without(mask))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    named = [of_pool for of_pool, is_named in found if is_named and len(of_pool)]
    where = (
        f"{_root(facts.owner(int(named[0][0])))}, another model"
        if named
        else "in tensors that no module and no optimizer has"
    )
    return Advice(
        rule="kept_copies",
        sentence=(
            f"Beside the weights that are trained lie {amount(held)} in their very sizes ({where}), "
            f"{percent(held / facts.peak_bytes)} of {amount(facts.peak_bytes)}. An average of them or the best checkpoint so far "
            f"can be kept on the host (tensor.cpu()): the peak falls by {amount(saves)}."
        ),
        saves_bytes=saves,
        evidence={
            "held_bytes": held,
            "tensors": len(copies),
            "trained_bytes": facts.bytes_of(trained),
            "peak_after_bytes": after,
        },
        source=SOURCE,
    )


def _parameters(facts: StepFacts) -> tuple[Whole, Whole]:
    """(those that are trained, those of other modules that have the name of one), as lives at the peak."""
    owned = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    names = [facts.owner(int(life)) or "" for life in owned]
    learns = {name.split(" of ", 1)[1] for name in facts.trace.owner_names if " of " in name}
    trained = np.array([name in learns for name in names], np.bool_)
    # Where there are several models each name begins with the class of its own.
    called = learns | {name.partition(".")[2] for name in learns if name[:1].isupper()}
    alike = np.array([_is_called(name, called) for name in names], np.bool_)
    return owned[trained], owned[~trained & alike]


def _is_called(name: str, called: set[str]) -> bool:
    while name:
        name = name.partition(".")[2]
        if name in called:
            return bool(name)
    return False


def _copies(size_bytes: Whole, trained: Whole, pool: Whole) -> Whole:
    """Of the pool, what makes up whole copies of what is trained; the oldest of each size."""
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
