"""Activations that checkpointing makes a second time, within the backward; and what steps without stacks learn from one that
has them."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.ownership.phases import PhaseIntervals
from vramscope_server.analysis.ownership.stack_frames import lives_with, stacks_through
from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
OPTIMIZER_FILES: Final = "torch/optim/"
MODULE_CALLS: Final = frozenset(("_call_impl", "_wrapped_call_impl"))
"""what torch.nn calls a module's forward by"""
FROM_HOST: Final = frozenset(("unpack_from_cpu",))
"""of torch.autograd.graph.save_on_cpu"""


def recomputed(trace: Trace, intervals: PhaseIntervals, in_backward: Flags) -> Flags:
    """Allocations that a checkpoint's second forward made, or that came back from the host, and that a backward then uses.

    Backward allocates on autograd's threads, where no Python runs; a recomputation does, and its stacks go through PyTorch's
    checkpoint, or (a function of somebody's own) through a module's call. It is one run of such allocations: what lives on behind
    the run was saved in it.
    """
    lives = trace.lives
    made = np.flatnonzero(in_backward)  # by event, as lives are
    again = np.zeros(len(lives), np.bool_)
    if not len(made) or not len(trace.stacks):
        return again
    goes_through = stacks_through(trace, CHECKPOINT_FILE) | stacks_through(trace, functions=MODULE_CALLS | FROM_HOST)
    inside = lives_with(trace, goes_through)[made]
    # A run ends at the next allocation that is not of it, or with its interval.
    run = np.cumsum(np.diff(inside, prepend=False) | (np.diff(intervals.born[made], prepend=-1) != 0))
    last_of_run = np.zeros(int(run[-1]) + 1, np.int64)
    last_of_run[run] = lives.alloc_event[made]  # (of several the last is written)
    again[made] = inside & (lives.requested_event[made] > last_of_run[run])
    return again


def alike(trace: Trace, intervals: PhaseIntervals, codes: Codes, python: Flags) -> Codes:
    """The same codes; a interval without stacks takes those of one with stacks that asked for the same bytes in the same order."""
    lives = trace.lives
    fresh = np.flatnonzero(intervals.born >= 0)
    if not python[fresh].any():
        return codes
    codes = codes.copy()
    starts = np.flatnonzero(np.diff(intervals.born[fresh], prepend=-1) != 0)
    pieces = np.split(fresh, starts[1:])
    with_stacks = trace.events.stack >= 0
    first_stack = int(np.argmax(with_stacks)) if with_stacks.any() else len(trace.events)
    known: dict[tuple[int, bytes], npt.NDArray[np.int64]] = {}
    for piece in pieces:
        if lives.alloc_event[piece[0]] >= first_stack:
            known[_likeness(trace, intervals, piece)] = piece
    for piece in pieces:
        if lives.alloc_event[piece[0]] < first_stack:
            other = known.get(_likeness(trace, intervals, piece))
            if other is not None:
                codes[piece] = codes[other]
    return codes


def _likeness(trace: Trace, intervals: PhaseIntervals, piece: npt.NDArray[np.int64]) -> tuple[int, bytes]:
    return int(intervals.phase[intervals.born[piece[0]]]), trace.lives.requested_bytes[piece].tobytes()
