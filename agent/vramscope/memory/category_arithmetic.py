"""Calculations for splits: the intervals of a step in which a peak falls, and categories that add up to the total."""

from __future__ import annotations

import itertools

from vramscope.memory.tensor_bytes import OwnedBytes
from vramscope.protocol.series import UNKNOWN
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.records import CategoryBytes, PhaseInterval


def after_backward(intervals: list[PhaseInterval]) -> list[int]:
    """Return the positions of intervals after a backward and before the next forward. Activations are gone in them."""
    first = next((place for place, one in enumerate(intervals) if one.phase == BACKWARD), len(intervals))
    return [
        place for place, one in enumerate(intervals) if one.phase == OPTIMIZER or (one.phase == OTHER and place > first)
    ]


def at_end_split(held: OwnedBytes, allocated: int) -> CategoryBytes:
    """Return the split at the end of a step. Activations count as 0: tensors that outlive the step are in *other*."""
    if allocated == UNKNOWN:
        return CategoryBytes(held.parameters, held.gradients, held.optimizer, held.buffers, workspaces=held.workspaces)
    return split_with_rest(held, held.gradients, 0, allocated)


def allocated_before_forward(intervals: list[PhaseInterval], position: int) -> int | None:
    """Return the allocated bytes when the first forward of the step began; None if none was seen."""
    for earlier, later in itertools.pairwise(intervals):
        if later.phase == FORWARD:
            return earlier.cuts[position].allocated_bytes
    return None


def split_with_rest(held: OwnedBytes, gradients: int, activations: int, allocated: int) -> CategoryBytes:
    """Return a split that adds up to ``allocated``. The rest is *other*.

    The rest is unknown if a part is unknown, or if the parts exceed ``allocated``. Unknown workspaces are in the rest.
    """
    parts = (held.parameters, gradients, held.optimizer, held.buffers, activations)
    rest = allocated - sum(parts) - max(0, held.workspaces) if UNKNOWN not in parts else UNKNOWN
    return CategoryBytes(*parts, held.workspaces, max(rest, UNKNOWN))


def workspaces_at(place: int, intervals: list[PhaseInterval], seen: dict[int, int], before: int, after: int) -> int:
    """Return the bytes of workspaces that existed during the whole interval at ``place``.

    seen            bytes of workspaces when an interval ended, by the identity of its counters
    before, after   bytes of workspaces at the end of the step before, and of this step
    """
    ahead = seen.get(id(intervals[place - 1].cuts), after) if place else before
    return min(ahead, seen.get(id(intervals[place].cuts), after))


def forward_of(intervals: list[PhaseInterval], place: int) -> int:
    """Return the position in the step of the forward pass at this interval, or before it; 0 if there is none."""
    forwards = sum(
        one.phase == FORWARD and (at == 0 or intervals[at - 1].phase != FORWARD)
        for at, one in enumerate(intervals[: place + 1])
    )
    return max(0, forwards - 1)
