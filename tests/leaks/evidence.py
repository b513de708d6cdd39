"""Weighs a truth: what the meter read of a loop, against what its label says. No detector has a part in it."""

from __future__ import annotations

import statistics
from typing import Any

from truth import Truth

SMALL_BYTES = 4096
SHARE = 0.1
MATERIAL_BYTES = 64 * 1024
ROUNDING_BYTES = 512
NODE_HEAP_BYTES = 1500
"""Bytes of host memory per step. The nodes of even the smallest graph take more."""

MENDED = Truth(settles_bytes=16 * 1024)
"""A fixed loop may keep a number of its own per step."""

Readings = list[dict[str, int]]
Pairs = list[tuple[dict[str, int], dict[str, int]]]
"""(of the broken loop, of the mended one) after as many steps"""


def against_leak(truth: Truth, broken: Readings, mended: Readings) -> list[str]:
    """What does not fit a leak's label: that it is there, that it is as large, that the fix takes it away."""
    # (at an epoch's end it may be emptied before the reading or after it)
    pairs = [pair for pair in pairs_of(broken, mended) if not truth.epoch or pair[0]["steps"] % truth.epoch]
    more = [b["allocated_bytes"] - m["allocated_bytes"] for b, m in pairs]
    steps = pairs[-1][0]["steps"]
    problems = [f"mended: {problem}" for problem in against_innocence(MENDED, mended)]
    if "no_grad-missing" in truth.kinds:
        saved = _highest(broken, "peak_bytes") - _highest(mended, "peak_bytes")
        if saved < max(MATERIAL_BYTES, (truth.held_bytes or 0) / 2):
            problems.append(f"the peak falls by {saved} bytes only")
    elif truth.bytes_each is not None:
        expected = truth.expected_bytes(steps, ROUNDING_BYTES) or 0
        slack = max(SMALL_BYTES, SHARE * expected, truth.item_bytes(ROUNDING_BYTES))
        if abs(more[-1] - expected) > slack:
            problems.append(f"after {steps} steps the fix frees {more[-1]} bytes, not {expected}")
    elif truth.held_bytes is not None and not truth.nodes:
        # Where optimizers take turns, it is held at one of their steps and not at the others.
        seen = max(more[-4:])
        if abs(seen - truth.held_bytes) > max(SMALL_BYTES, SHARE * truth.held_bytes):
            problems.append(f"at a step's start the fix frees {seen} bytes, not {truth.held_bytes}")
    if truth.nodes:
        problems += _nodes(truth, pairs)
    return problems


def pairs_of(broken: Readings, mended: Readings) -> Pairs:
    """Readings after as many steps, but for the last ones: there the loop has returned, and its locals are gone."""
    by_steps = {reading["steps"]: reading for reading in mended[:-1]}
    return [(reading, by_steps[reading["steps"]]) for reading in broken[:-1] if reading["steps"] in by_steps]


def against_innocence(truth: Truth, readings: Readings) -> list[str]:
    """What rises in the last third of the loop above what was there in the second."""
    third = len(readings) // 3
    middle, last = readings[third : 2 * third], readings[2 * third : -1]
    problems = []
    rise = _highest(last, "allocated_bytes") - _highest(middle, "allocated_bytes")
    if rise > max(SMALL_BYTES, truth.settles_bytes):
        problems.append(f"what lives at a step's start rises by {rise} bytes in the last third")
    if _highest(last, "graphs") > _highest(middle, "graphs") + 1:
        problems.append(f"{_highest(last, 'graphs')} graphs are alive, {_highest(middle, 'graphs')} before")
    return problems


def _nodes(truth: Truth, pairs: Pairs) -> list[str]:
    """Graphs that a backward was called for are counted; of others the host's heap tells."""
    steps = pairs[-1][0]["steps"]
    graphs = pairs[-1][0]["graphs"] - pairs[-1][1]["graphs"]
    heap = heap_bytes_per_step(pairs, truth.every)
    if graphs < 0.8 * truth.items(steps) - 1 and heap < NODE_HEAP_BYTES:
        return [f"only {graphs} graphs more after {steps} steps, and {heap:.0f} bytes more of the heap a step"]
    return []


def heap_bytes_per_step(pairs: Pairs, every: int) -> float:
    """The median of the slopes from each reading to the first one ``every`` steps later. What a cache or a thread takes once is
    in one of them (of all pairs it would be in half, where it comes in the middle)."""
    at = [(broken["steps"], broken["heap_bytes"] - mended["heap_bytes"]) for broken, mended in pairs[3:]]
    slopes = []
    for index, (a, bytes_a) in enumerate(at):
        later = next(((b, bytes_b) for b, bytes_b in at[index + 1 :] if b - a >= every), None)
        if later is not None:
            slopes.append((later[1] - bytes_a) / (later[0] - a))
    return statistics.median(slopes) if slopes else 0.0


def _highest(readings: Readings, name: str) -> int:
    return max((reading[name] for reading in readings), default=0)


def readings_of(scales: Any, name: str, truth: Truth, *, mended: bool = False) -> Readings:
    """From a child process; cycles stay in it where the label is about them."""
    found: Readings = scales.ask("weigh", name, "cuda", mended=mended, collect="cycle" not in truth.kinds)
    return found
