"""Autocast keeps a second copy of the weights, of half the size, from the forward to the backward.

Condition: the forwards of modules made activations of exactly half the bytes of their own weights (so modules must have been
recorded), for nine of ten matrices or more; and the run was seen to be of mixed precision, where its techniques are known.
Arithmetic: weights that are of 16 bits themselves do without these copies, and they and their gradients take half. What autocast
computes in 32 bits all the same (a loss, a norm) gets smaller, too, and is not reckoned: the promise is a least.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.units import amount, percent

Flags = npt.NDArray[np.bool_]

SOURCE: Final = "https://docs.pytorch.org/docs/stable/amp.html"
LEAST_SHARE: Final = 0.9
"""of the matrices that belong to a recorded module: autocast copies each that a matrix product takes"""
LEAST_BYTES: Final = 64 << 10
"""of such a matrix's copy: norms and biases are not copied"""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None where the weights have no copies, or it is not known whose forward made what."""
    copies, modules = _copies(facts)
    if not copies:
        return None
    chosen = lifetimes_of(facts)
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    held = facts.bytes_of(facts.at_peak[chosen[facts.at_peak]])
    after = facts.peak_after(facts.without(chosen) + facts.lowered(_halves(facts, copies.keys())))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="weight_copies",
        sentence=(
            f"Autocast's 16-bit copies of {len(copies)} weights are {amount(held)} of {amount(facts.peak_bytes)} at the peak "
            f"({percent(held / facts.peak_bytes)}), beside 32-bit weights of {amount(facts.bytes_of(parameters))}. With weights "
            f"and gradients of 16 bits the peak falls by {amount(saves)} or more; such a training rounds differently, though."
        ),
        saves_bytes=saves,
        evidence={"copies": len(copies), "copies_bytes": held, "modules": modules, "peak_after_bytes": after},
        source=SOURCE,
    )


def lifetimes_of(facts: StepFacts) -> Flags:
    """The lives that are 16-bit copies of 32-bit weights, made in the forwards of the peak's step."""
    copies, _ = _copies(facts)
    chosen = np.zeros(len(facts.trace.lives), np.bool_)
    chosen[[row for rows in copies.values() for row in rows]] = True
    return chosen


def _copies(facts: StepFacts) -> tuple[dict[str, list[int]], int]:
    """The copies by the weights' names, and how many weights have a module that was recorded; none where what is half as large as a
    weight is something else."""
    if facts.techniques and all(one["kind"] != "mixed_precision" for one in facts.techniques):
        return {}, 0
    lives, born = facts.trace.lives, facts.phase_intervals.born
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    large = parameters[lives.requested_bytes[parameters] >= 2 * LEAST_BYTES]
    halves = {name: int(lives.requested_bytes[row]) // 2 for row in large if (name := facts.owner(int(row)))}
    of_module: dict[str | None, list[str]] = {}
    for weight in halves:
        of_module.setdefault(weight.rpartition(".")[0], []).append(weight)
    forward = facts.is_of("activations") & facts.born_in("forward")
    # By the forward, too: what is made later in it of the same size is something else.
    copies: dict[str, dict[int, int]] = {}
    elsewhere: dict[int, list[int]] = {}
    seen: set[str] = set()
    for row in np.flatnonzero(forward & facts.in_step()).tolist():
        own, size = of_module.get(facts.module_of(row), []), int(lives.requested_bytes[row])
        seen.update(own)
        made = next((one for one in own if halves[one] == size and born[row] not in copies.get(one, ())), None)
        if made is not None:
            copies.setdefault(made, {})[int(born[row])] = row
        elif not own:
            elsewhere.setdefault(size, []).append(row)
    if not copies or len(copies) < LEAST_SHARE * len(seen):
        return {}, 0
    # A weight without a copy may be one that two modules share: then the one that has no name for it made the copy.
    for weight in sorted(halves.keys() - copies.keys()):
        rows = elsewhere.get(halves[weight], [])
        copies[weight] = {int(born[row]): row for row in reversed(rows)}
        elsewhere[halves[weight]] = [row for row in rows if row not in copies[weight].values()]
    return {weight: list(rows.values()) for weight, rows in copies.items() if rows}, len(seen)


def _halves(facts: StepFacts, weights: Collection[str]) -> npt.NDArray[np.int64]:
    """By how many bytes each life gets smaller when these weights and their gradients are of 16 bits."""
    lives = facts.trace.lives
    lower = np.zeros(len(lives), np.int64)
    for row in np.flatnonzero(facts.is_of("parameters", "gradients")).tolist():
        if (facts.owner(row) or "").removeprefix("gradient of ") in weights:
            lower[row] = lives.size_bytes[row] - -(-int(lives.requested_bytes[row]) // 1024) * 512  # in whole blocks
    return lower
