"""Steps and phases of a snapshot by PyTorch, which has none, from the functions in its stacks.

    torch/optim in the stack                      optimizer
    autograd's engine in the stack, or no stack   backward: autograd's threads run no Python
    a module's call, or torch.nn.functional       forward
    anything else                                 the phase before it; data after an optimizer step

If most allocations have no stack, a missing stack has no meaning.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.ownership.recompute import CHECKPOINT_FILE, ENGINE, MODULE_CALLS, OPTIMIZER_FILES
from vramscope_server.analysis.ownership.stack_frames import lives_with, stacks_through
from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

_OTHER, _DATA, _FORWARD, _BACKWARD, _STEPPING, _EVAL = range(len(PHASES))
_SAME: Final = -1
"""The phase before."""
MIN_STACKS: Final = 0.2
"""Minimum share of allocations with a stack."""
_NATIVE_ENGINE: Final = "autograd::Engine::"
_RECOMPUTE: Final = frozenset(("unpack_hook", "backward"))
_MOVES: Final = frozenset(("_apply",))
_MAKES: Final = frozenset(("__init__",))


def with_phases(trace: Trace) -> Trace:
    """Trace with steps and phases from its stacks. The trace itself if it has phases, too few stacks, or stacks of no phase."""
    events, lives = trace.events, trace.lives
    made = np.flatnonzero(lives.alloc_event >= 0)
    if not len(made) or (events.phase >= 0).any() or not len(trace.stacks):
        return trace
    stack = lives.stack[made]
    has_stack = (stack >= 0) & (stack < len(trace.stacks))
    if has_stack.mean() < MIN_STACKS:
        return trace
    of_stack = _phases_of_stacks(trace)
    phase = np.where(has_stack, of_stack[np.where(has_stack, stack, 0)], _BACKWARD).astype(np.int64)
    # An unknown phase is the phase before, or data after an optimizer step.
    known = np.maximum.accumulate(np.where(phase != _SAME, np.arange(len(phase)), -1))
    before = np.where(known >= 0, phase[np.maximum(known, 0)], _OTHER)
    phase = np.where(phase != _SAME, phase, np.where(before == _STEPPING, _DATA, before))
    of_event = np.full(len(events), -1, np.int64)
    of_event[lives.alloc_event[made]] = phase
    last = np.maximum.accumulate(np.where(of_event >= 0, np.arange(len(events)), -1))
    of_event = np.where(last >= 0, of_event[np.maximum(last, 0)], _OTHER)
    if not (of_event > _OTHER).any():
        return trace
    ends = np.zeros(len(events), np.int64)
    ends[1:] = (of_event[:-1] == _STEPPING) & (of_event[1:] != _STEPPING)
    step = (1 + np.cumsum(ends)).astype(np.int32)
    read = replace(trace, events=replace(events, phase=of_event.astype(np.int8), step=step))
    read.__dict__["lives"] = lives  # computed once: lifetimes do not depend on phases
    return read


def moved_or_made(trace: Trace) -> Flags:
    """Allocations by a module's ``.to()`` or ``.cuda()``, or by an ``__init__`` outside of a forward: parameters and buffers."""
    lives = trace.lives
    moves = lives_with(trace, stacks_through(trace, functions=_MOVES))
    calls = lives_with(trace, stacks_through(trace, functions=MODULE_CALLS))
    made = lives_with(trace, stacks_through(trace, functions=_MAKES))
    stays = lives.free_requested_event >= len(trace.events)
    chosen: Flags = (moves | made) & ~calls & stays
    return chosen


def _phases_of_stacks(trace: Trace) -> Codes:
    phase = np.full(len(trace.stacks), _SAME, np.int8)
    phase[stacks_through(trace, functions=MODULE_CALLS)] = _FORWARD
    phase[stacks_through(trace, file="torch/nn/functional.py")] = _FORWARD
    phase[stacks_through(trace, functions=ENGINE)] = _BACKWARD
    phase[stacks_through(trace, part=_NATIVE_ENGINE)] = _BACKWARD
    phase[stacks_through(trace, file=CHECKPOINT_FILE, functions=_RECOMPUTE)] = _BACKWARD
    phase[stacks_through(trace, file=OPTIMIZER_FILES)] = _STEPPING
    return phase
