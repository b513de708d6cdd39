"""Graph nodes of backward passes, from the order of allocations and frees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.advice.facts import StepFacts
from vramscope_server.analysis.advice.rules.batch import workspaces_of_one_product
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.ownership.categories import BACKWARD


class Node(NamedTuple):
    """Events of one graph node's backward."""

    begin: int
    end: int
    """Event after its results: its bias's gradient may be summed afterwards, with memory of its own."""


class Frees(NamedTuple):
    """Allocations in the order in which they are freed."""

    made: IntArray
    freed: IntArray
    is_workspace: npt.NDArray[np.bool_]
    all_made: IntArray
    """Events of allocations, in their own order."""
    not_backward: IntArray
    """Events of other phases."""


def frees_of(facts: StepFacts) -> Frees:
    """Sort once for all nodes of a trace: a recording may have a million events."""
    lives = facts.trace.lives
    order = np.argsort(lives.free_requested_event, kind="stable")
    return Frees(
        lives.alloc_event[order],
        lives.free_requested_event[order],
        workspaces_of_one_product(facts)[order],
        lives.alloc_event,
        np.flatnonzero(facts.trace.events.phase != BACKWARD),
    )


def node_that_frees(frees: Frees, event: int) -> Node:
    """The graph node whose first free of what it saved is ``event``.

    A node allocates its results and then frees what it saved. Frees before that, of what the node itself allocated, belong to it.
    Memory that it frees before its last result is needed for a result, as a convolution's is.
    """
    made, freed, is_workspace, all_made, not_backward = frees
    before = int(np.searchsorted(not_backward, event))
    earliest = int(not_backward[before - 1]) + 1 if before else 0
    begin = end = event
    is_after_results = True
    while last := int(np.searchsorted(freed, begin)):
        of_last, free = int(made[last - 1]), int(freed[last - 1])
        since = int(np.searchsorted(freed, of_last))
        if of_last < earliest or (made[since:last] < of_last).any():
            begin = max(free + 1, earliest)
            break
        is_after_results &= int(np.searchsorted(all_made, begin)) == int(np.searchsorted(all_made, free))
        begin = of_last
        if is_after_results and not is_workspace[last - 1]:
            end = begin
    return Node(begin, end)
