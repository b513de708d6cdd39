"""Advice for copies of the weights on the device: a checkpoint, an average, the best state so far, or a reference model.

Condition: tensors at the peak that are older than the step and belong to another module with the same names, or to a dict that
has the parameters by name and shape, as the agent found by the user's variables. Sizes alone are no evidence: workspaces of
cuBLAS or a replay buffer have the size of a large weight by chance.
Calculation: the step's peak without them. Their purpose is unknown: a teacher must stay, and an average that is updated in
each step is cheaper on the device.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent

SOURCE: Final = "tensors that no step uses need not be on the device"
COPIES: Final = OWNER_CATEGORIES.index("copies")
COVERED: Final = 0.9
"""Minimum share of the trained bytes that a copy covers. A copy may lack tied embeddings, or buffers."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if there is no whole copy."""
    lives = facts.trace.lives
    trained, others = _parameters(facts)
    if not len(trained):
        return None
    of_modules = _copies(lives.requested_bytes, trained, others)
    in_dicts = facts.at_peak[(facts.ownership.category == COPIES)[facts.at_peak]]
    copies = np.concatenate([of_modules, in_dicts])
    if not len(copies):
        return None
    mask = np.zeros(len(lives), np.bool_)
    mask[copies] = True
    copied, after = facts.bytes_of(copies), facts.peak_after(facts.without(mask))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    holders = list(dict.fromkeys(facts.owner(int(life)) or "" for life in in_dicts))
    models = [f"{_root(facts.owner(int(of_modules[0])))}, another model"] if len(of_modules) else []
    where = ", ".join([*models, *holders])
    fix = (
        'Read a checkpoint with map_location="cpu", or delete it after use. An average or the best state can stay on the host.'
        if holders
        else "A weight average or the best checkpoint so far can stay on the host (tensor.cpu())."
    )
    return Advice(
        rule="kept_copies",
        sentence=(
            f"Copies of the trained weights ({where}) are {amount(copied)} of {amount(facts.peak_bytes)} "
            f"({percent(copied / facts.peak_bytes)}). Without them the peak falls by {amount(saves)}. {fix}"
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


def _parameters(facts: StepFacts) -> tuple[IntArray, IntArray]:
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


def _copies(size_bytes: IntArray, trained: IntArray, pool: IntArray) -> IntArray:
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
