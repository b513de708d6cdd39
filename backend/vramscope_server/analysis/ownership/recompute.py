"""Activations that checkpointing recomputes within backward, and categories of steps without stacks."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.ownership.phases import PhaseIntervals
from vramscope_server.analysis.ownership.stack_frames import lives_with, stacks_ending_in, stacks_through
from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

CHECKPOINT_FILE: Final = "torch/utils/checkpoint.py"
OPTIMIZER_FILES: Final = "torch/optim/"
MODULE_CALLS: Final = frozenset(("_call_impl", "_wrapped_call_impl"))
"""Functions of torch.nn that call a module's forward."""
ENGINE: Final = frozenset(("_engine_run_backward",))
"""Function of torch.autograd that runs a backward pass."""
FROM_HOST: Final = frozenset(("unpack_from_cpu",))
"""Function of torch.autograd.graph.save_on_cpu."""


def recomputed(trace: Trace, intervals: PhaseIntervals, in_backward: Flags) -> Flags:
    """Whether each allocation is by a checkpoint's second forward pass, or was copied back from the host, for a backward.

    Backward allocates on autograd's threads, which run no Python. A recomputation runs Python, and its stacks contain PyTorch's
    checkpoint or a module's call (for other checkpoint functions). The backward pass that a reentrant checkpoint runs inside is no
    recomputation: its stacks end in autograd. Allocations that outlive a run of such allocations were saved by it.
    """
    lives = trace.lives
    made = np.flatnonzero(in_backward)  # by event, as lives are
    repeated = np.zeros(len(lives), np.bool_)
    if not len(made) or not len(trace.stacks):
        return repeated
    goes_through = stacks_through(trace, CHECKPOINT_FILE) | stacks_through(trace, functions=MODULE_CALLS | FROM_HOST)
    inside = lives_with(trace, goes_through & ~stacks_ending_in(trace, ENGINE))[made]
    # A run ends at the next other allocation, or with its interval.
    run = np.cumsum(np.diff(inside, prepend=False) | (np.diff(intervals.born[made], prepend=-1) != 0))
    last_of_run = np.zeros(int(run[-1]) + 1, np.int64)
    last_of_run[run] = lives.alloc_event[made]  # later entries replace earlier ones
    repeated[made] = inside & (lives.free_requested_event[made] > last_of_run[run])
    return repeated


def without_stacks(trace: Trace, intervals: PhaseIntervals, codes: Codes, python: Flags) -> Codes:
    """Codes in which intervals without stacks get those of intervals with stacks and the same requests in the same order."""
    lives = trace.lives
    recorded = np.flatnonzero(intervals.born >= 0)
    if not python[recorded].any():
        return codes
    codes = codes.copy()
    starts = np.flatnonzero(np.diff(intervals.born[recorded], prepend=-1) != 0)
    groups = np.split(recorded, starts[1:])
    with_stacks = trace.events.stack >= 0
    first_stack = int(np.argmax(with_stacks)) if with_stacks.any() else len(trace.events)
    known: dict[tuple[int, bytes], IntArray] = {}
    for group in groups:
        if lives.alloc_event[group[0]] >= first_stack:
            known[_signature(trace, intervals, group)] = group
    for group in groups:
        if lives.alloc_event[group[0]] < first_stack:
            other = known.get(_signature(trace, intervals, group))
            if other is not None:
                codes[group] = codes[other]
    return codes


def _signature(trace: Trace, intervals: PhaseIntervals, group: IntArray) -> tuple[int, bytes]:
    return int(intervals.phase[intervals.born[group[0]]]), trace.lives.requested_bytes[group].tobytes()
