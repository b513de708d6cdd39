"""Where in a step a split is taken, and how it adds up."""

from __future__ import annotations

import itertools

from vramscope.memory.tensor_bytes import OwnedBytes
from vramscope.protocol.series import UNKNOWN
from vramscope.steps.phase import BACKWARD, FORWARD, OPTIMIZER, OTHER
from vramscope.steps.records import CategoryBytes, PhaseInterval


def behind_backward(stretches: list[PhaseInterval]) -> list[int]:
    """The places of stretches behind a backward and ahead of the next forward, when activations are gone."""
    first = next((place for place, one in enumerate(stretches) if one.phase == BACKWARD), len(stretches))
    return [
        place for place, one in enumerate(stretches) if one.phase == OPTIMIZER or (one.phase == OTHER and place > first)
    ]


def at_end_split(held: OwnedBytes, allocated: int) -> CategoryBytes:
    """The split when a step ends. Activations are unknown there: what outlives the step counts as other."""
    if allocated == UNKNOWN:
        return CategoryBytes(held.parameters, held.gradients, held.optimizer, held.buffers, workspaces=held.workspaces)
    return split_with_rest(held, held.gradients, 0, allocated)


def allocated_before_forward(stretches: list[PhaseInterval], position: int) -> int | None:
    """Allocated bytes when the first forward of the step began; None where no forward was seen."""
    for earlier, later in itertools.pairwise(stretches):
        if later.phase == FORWARD:
            return earlier.cuts[position].allocated_bytes
    return None


def split_with_rest(held: OwnedBytes, gradients: int, activations: int, allocated: int) -> CategoryBytes:
    """A split that adds up to ``allocated``, the rest being other. The rest is unknown where a part is (unknown workspaces
    are in the rest), or where more was counted than is allocated."""
    parts = (held.parameters, gradients, held.optimizer, held.buffers, activations)
    rest = allocated - sum(parts) - max(0, held.workspaces) if UNKNOWN not in parts else UNKNOWN
    return CategoryBytes(*parts, held.workspaces, max(rest, UNKNOWN))


def workspaces_at(place: int, stretches: list[PhaseInterval], seen: dict[int, int], before: int, after: int) -> int:
    """Workspaces that existed during the whole interval at ``place``, as far as they were read around it.

    seen            workspaces when an interval ended, by the identity of its counters
    before, after   workspaces at the end of the step before, and of this step
    """
    ahead = seen.get(id(stretches[place - 1].cuts), after) if place else before
    return min(ahead, seen.get(id(stretches[place].cuts), after))


def forward_of(stretches: list[PhaseInterval], place: int) -> int:
    """Position of the forward pass at this interval, or before it, among those of the step; 0 where there is none before."""
    forwards = sum(
        one.phase == FORWARD and (at == 0 or stretches[at - 1].phase != FORWARD)
        for at, one in enumerate(stretches[: place + 1])
    )
    return max(0, forwards - 1)
