"""States of a holder and the reasons for changing them, stored with each finding and sent with it."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple


class HolderState(enum.Enum):
    """State of a holder from scan to scan: new, then suspected, then reported, then one of the last three."""

    NEW = "new"
    SUSPECTED = "suspected"
    REPORTED = "reported"
    SETTLED = "settled"
    """Growth has stopped."""
    EMPTIED = "emptied"
    WITHDRAWN = "withdrawn"
    """A report that turned out to be wrong, or part of another one."""


class Reason(enum.Enum):
    """Why a holder changed its state."""

    FIRST_SEEN = "first-seen"
    # suspected
    MORE_THAN_BEFORE = "more-than-before"
    OVERLAPS_ONCE = "overlaps-once"
    MAY_BE_EMPTIED = "may-be-emptied"
    MAY_FILL_UP = "may-fill-up"
    SLOWS_DOWN = "slows-down"
    IS_CUT = "is-cut"
    SAME_AS_ANOTHER = "same-as-another"
    # reported
    OVERLAPS_EACH_STEP = "overlaps-always"
    GRAPHS_OF_MANY_AGES = "graph-ages"
    GRAPHS_INCREASE = "graphs-increase"
    GRAPH_SPANS_ITERATIONS = "graph-is-long"
    GRAPH_LENGTHENS = "graph-lengthens"
    GRAPHS_WITHOUT_BACKWARD = "no-backward"
    TENSORS_INCREASE = "tensors-increase"
    TENSOR_LENGTHENS = "tensor-lengthens"
    REFERENCE_CYCLE = "reference-cycle"
    EVALUATION_ACCUMULATES = "evaluation"
    STILL_MORE = "still-more"
    OPTIMIZER_IS_IDLE = "optimizer-idle"
    FILLS_AGAIN = "fills-again"
    # settled
    GROWTH_STOPPED = "growth-stopped"
    SHRANK = "shrank"
    # emptied
    EMPTIED_AT_ONCE = "emptied-at-once"
    TENSORS_DIED = "tensors-died"
    NOT_FILLED_AGAIN = "not-filled-again"
    # withdrawn
    NAMED_SINCE = "named-since"
    REPLACED = "replaced"
    BACKWARD_FOLLOWED = "backward-ran"
    IN_USE_AGAIN = "in-use-again"


class Transition(NamedTuple):
    """One change of a holder's state."""

    state: HolderState
    reason: Reason
    step: int


ENDS: Final = {
    Reason.GROWTH_STOPPED: HolderState.SETTLED,
    Reason.SHRANK: HolderState.SETTLED,
    Reason.EMPTIED_AT_ONCE: HolderState.EMPTIED,
    Reason.TENSORS_DIED: HolderState.EMPTIED,
    Reason.NOT_FILLED_AGAIN: HolderState.EMPTIED,
    Reason.NAMED_SINCE: HolderState.WITHDRAWN,
    Reason.REPLACED: HolderState.WITHDRAWN,
    Reason.BACKWARD_FOLLOWED: HolderState.WITHDRAWN,
    Reason.IN_USE_AGAIN: HolderState.WITHDRAWN,
}
"""Reasons for which a report ends, and the state that follows."""
