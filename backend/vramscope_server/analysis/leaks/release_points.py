"""Where the fix of a leak would let its allocations go: one rule a kind, as its advice says.

============================  ========================================================================================
growing, tensor-growth        what earlier steps left is gone; the newest stays, as a variable does, until its successor is made
growing-eval, no_grad-missing nothing is saved: each goes when what follows has been computed of it
overlap                       before the backward begins; what that backward needs, with its end
overlap-unfreed               what a backward needs, with its end; what none needs is not saved
cycle                         when the step ends
============================  ========================================================================================

Where several places are possible the latest is taken: a fix that does more than its advice's least saves more.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.leaks.leaked_allocations import LeakedAllocations
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.trace.types import ALLOC

GONE: Final = -1
"""Released before the recording begins."""
USERS: Final = 2
"""Number of allocations after which a result without a graph is no longer needed."""
_BACKWARD: Final = PHASES.index("backward")


def releases(trace: Trace, held: LeakedAllocations) -> tuple[IntArray, IntArray]:
    """(lives, the event before which the fix lets each of them go); those alone that it lets go earlier than the run did."""
    if held.kind in ("growing", "tensor-growth"):
        lives, at = _succeeded(trace, held)
    else:
        newest = {
            "growing-eval": _at_once,
            "no_grad-missing": _at_once,
            "overlap": _before_backward,
            "overlap-unfreed": _with_the_backward,
            "cycle": _at_the_steps_end,
        }[held.kind](trace, held)
        lives = np.concatenate([held.before, held.after])
        at = np.concatenate([np.full(len(held.before), GONE), newest])
    earlier = at < trace.lives.free_requested_event[lives]
    return lives[earlier], at[earlier]


def _succeeded(trace: Trace, held: LeakedAllocations) -> tuple[IntArray, IntArray]:
    """Of the memory from before, as much remains as this step allocates again: each until one of its size is allocated."""
    size, made = trace.lives.requested_bytes, trace.lives.alloc_event
    at = np.full(len(held.before), GONE)
    left = np.ones(len(held.before), np.bool_)
    for newer in held.after[made[held.after] >= held.begin]:
        alike = np.flatnonzero(left & (size[held.before] == size[newer]))
        if len(alike):
            left[alike[-1]] = False
            at[alike[-1]] = made[newer] + 1
    return held.before, at


def _at_once(trace: Trace, held: LeakedAllocations) -> IntArray:
    """A result is let go when the next has been computed of it, and of the one beside it: ``a * b`` needs two."""
    made = np.flatnonzero(trace.events.action == ALLOC)
    following = np.searchsorted(made, trace.lives.alloc_event[held.after], side="right")
    let_go: IntArray = np.append(made, np.full(USERS, len(trace.events)))[following + USERS - 1] + 1
    return let_go


def _before_backward(trace: Trace, held: LeakedAllocations) -> IntArray:
    backward = np.flatnonzero(trace.events.phase == _BACKWARD)
    following = np.searchsorted(backward, trace.lives.alloc_event[held.after], side="right")
    begins = np.append(backward, len(trace.events))[following]
    last: IntArray = np.maximum(begins, _needed(held))
    return last


def _with_the_backward(trace: Trace, held: LeakedAllocations) -> IntArray:
    needed = _needed(held)
    return np.where(needed == GONE, _at_once(trace, held), needed)


def _needed(held: LeakedAllocations) -> IntArray:
    return np.array([held.needed_until.get(int(life), GONE) for life in held.after], np.int64)


def _at_the_steps_end(trace: Trace, held: LeakedAllocations) -> IntArray:
    """The first event of a later step."""
    steps = trace.events.step
    later = np.flatnonzero(steps > steps[held.begin])
    return np.full(len(held.after), int(later[0]) if len(later) else len(steps))
