"""Advice for the second copy of the weights, of half the size, that autocast keeps from forward to backward.

Condition: modules' forward passes made activations of exactly half the bytes of their own weights, for nine of ten matrices
or more (so modules must be recorded), and the run uses mixed precision, if its techniques are known.
Calculation: 16-bit weights need no such copies, and they and their gradients take half. Tensors that autocast computes in 32
bits (a loss, a norm) get smaller too, which is not counted: the saving is a lower bound.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.advice.facts import WORTH_FRACTION, Advice, StepFacts
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.number_format import amount, percent

Flags = npt.NDArray[np.bool_]

SOURCE: Final = "https://docs.pytorch.org/docs/stable/amp.html"
MIN_SHARE: Final = 0.9
"""Minimum share of the recorded modules' matrices with a copy. Autocast copies each operand of a matrix product."""
MIN_BYTES: Final = 64 << 10
"""Minimum size of a matrix's copy. Norms and biases are not copied."""


def advise(facts: StepFacts) -> Advice | None:
    """Advice, or None if the weights have no copies, or modules are unknown."""
    copies, modules = _copies(facts)
    if not copies:
        return None
    chosen = allocations_of_copies(facts)
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    copied = facts.bytes_of(facts.at_peak[chosen[facts.at_peak]])
    after = facts.peak_after(facts.without(chosen) + facts.lowered(_halves(facts, copies.keys())))
    saves = facts.peak_bytes - after
    if saves < WORTH_FRACTION * facts.peak_bytes:
        return None
    return Advice(
        rule="weight_copies",
        sentence=(
            f"{_copies_at_peak(len(copies), copied, facts.peak_bytes)}With weights and gradients in 16 bits "
            f"(the 32-bit weights are {amount(facts.bytes_of(parameters))}), the peak falls by {amount(saves)} or more, at lower "
            "precision."
        ),
        saves_bytes=saves,
        evidence={"copies": len(copies), "copies_bytes": copied, "modules": modules, "peak_after_bytes": after},
        source=SOURCE,
    )


def _copies_at_peak(weights: int, copied_bytes: int, peak_bytes: int) -> str:
    """A sentence about the copies that exist at the peak; empty if none does."""
    if not copied_bytes:
        return ""
    share = percent(copied_bytes / peak_bytes)
    of_peak = f"{amount(copied_bytes)} of {amount(peak_bytes)} at the peak ({share})"
    return f"Autocast's 16-bit copies of {weights} weights are {of_peak}. "


def allocations_of_copies(facts: StepFacts) -> Flags:
    """Whether each allocation is a 16-bit copy of a 32-bit weight, made in a forward pass of the peak's step."""
    copies, _ = _copies(facts)
    chosen = np.zeros(len(facts.trace.lives), np.bool_)
    chosen[[row for rows in copies.values() for row in rows]] = True
    return chosen


def _copies(facts: StepFacts) -> tuple[dict[str, list[int]], int]:
    """Copies by the weights' names, and the number of weights of recorded modules.

    Empty if the allocations of half a weight's size are something else.
    """
    if facts.techniques and all(one["kind"] != "mixed_precision" for one in facts.techniques):
        return {}, 0
    lives, born = facts.trace.lives, facts.phase_intervals.born
    parameters = facts.at_peak[facts.is_of("parameters")[facts.at_peak]]
    large = parameters[lives.requested_bytes[parameters] >= 2 * MIN_BYTES]
    halves = {name: int(lives.requested_bytes[row]) // 2 for row in large if (name := facts.owner(int(row)))}
    of_module: dict[str | None, list[str]] = {}
    for weight in halves:
        of_module.setdefault(weight.rpartition(".")[0], []).append(weight)
    forward = facts.is_of("activations") & facts.allocated_in("forward")
    # At most one per forward pass: a later allocation of the same size in it is something else.
    copies: dict[str, dict[int, int]] = {}
    elsewhere: dict[int, list[int]] = {}
    recorded: set[str] = set()
    for row in np.flatnonzero(forward & facts.in_step()).tolist():
        own, size = of_module.get(facts.module_of(row), []), int(lives.requested_bytes[row])
        recorded.update(own)
        made = next((one for one in own if halves[one] == size and born[row] not in copies.get(one, ())), None)
        if made is not None:
            copies.setdefault(made, {})[int(born[row])] = row
        elif not own:
            elsewhere.setdefault(size, []).append(row)
    if not copies or len(copies) < MIN_SHARE * len(recorded):
        return {}, 0
    # Two modules may share a weight without a copy. Then the module without a name for it made the copy.
    for weight in sorted(halves.keys() - copies.keys()):
        rows = elsewhere.get(halves[weight], [])
        copies[weight] = {int(born[row]): row for row in reversed(rows)}
        elsewhere[halves[weight]] = [row for row in rows if row not in copies[weight].values()]
    return {weight: list(rows.values()) for weight, rows in copies.items() if rows}, len(recorded)


def _halves(facts: StepFacts, weights: Collection[str]) -> IntArray:
    """Bytes that each allocation shrinks by if these weights and their gradients have 16 bits."""
    lives = facts.trace.lives
    lower = np.zeros(len(lives), np.int64)
    for row in np.flatnonzero(facts.is_of("parameters", "gradients")).tolist():
        if (facts.owner(row) or "").removeprefix("gradient of ") in weights:
            lower[row] = lives.size_bytes[row] - -(-int(lives.requested_bytes[row]) // 1024) * 512  # in whole blocks
    return lower
