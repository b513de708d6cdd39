"""Category of each allocation: parameters, gradients, optimizer state, buffers, activations, temporaries, input.

First by owner: the agent reads the addresses of parameters, gradients, state, buffers and inputs at the start of a step, before
its optimizer and at its end (``ownership_of``). The rest by the *phase interval* of the allocation (the forward pass of one
micro-batch, its backward pass), and by whether it outlives this interval:

    made in    and freed in that interval        and outlives it
    forward    temporaries                    activations, if it goes within two steps; else gradients, if it is a bucket of DDP;
                                              else unknown
    backward   temporaries; what a            gradients; what Python made there, as data
               checkpoint recomputes and
               keeps for its block's
               backward: activations
    optimizer  temporaries                    temporaries, if it goes within the step (a closure runs forward and backward in
                                              between); else optimizer, where owners are not known; else as data
    data,      temporaries                    input, if it goes within two steps; else unknown. Without any phase there are
    other                                     neither intervals nor steps: all is unknown

Allocations by a module's call within backward are recomputed, by any checkpoint. Allocations by PyTorch's optimizers there
belong to the optimizer. Workspaces are those of cuBLAS, by the addresses that the agent read from PyTorch. Where there are none
of these, workspaces have the sizes that PyTorch uses, are never freed, and there are no more than one per thread and stream.
A snapshot without phases is read by its stacks (``stack_categories``). Allocations by ``.to()`` or a module's ``__init__`` that
are never freed count as parameters there, because buffers look the same. All else is unknown.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope_server.analysis.ownership.allocation_owners import NOBODY, ownership_of
from vramscope_server.analysis.ownership.phases import PhaseIntervals, phase_intervals_of
from vramscope_server.analysis.ownership.recompute import OPTIMIZER_FILES, recomputed, without_stacks
from vramscope_server.analysis.ownership.stack_categories import moved_or_made, with_phases
from vramscope_server.analysis.ownership.stack_frames import (
    lives_with,
    stacks_ending_in,
    stacks_in_python,
    stacks_through,
)
from vramscope_server.analysis.trace.trace import Trace

Codes = npt.NDArray[np.int8]
Flags = npt.NDArray[np.bool_]

CATEGORIES: Final = (
    "parameters",
    "gradients",
    "optimizer",
    "buffers",
    "activations",
    "temporaries",
    "input",
    "workspaces",
    "unknown",
)
"""Category codes are positions in this tuple."""
PARAMETERS, GRADIENTS, OPTIMIZER, BUFFERS, ACTIVATIONS, TEMPORARIES, INPUT, WORKSPACES, UNKNOWN = range(len(CATEGORIES))

OTHER, DATA, FORWARD, BACKWARD, STEPPING, EVAL = range(len(PHASES))

CUBLAS_BYTES: Final = (4096 * 2048 + 16 * 8192, 4096 * 8192)
"""Sizes of a cuBLAS workspace, before Hopper and since (the default of CUBLAS_WORKSPACE_CONFIG)."""

CUBLAS_THREADS: Final = 2
"""Threads of a process that use cuBLAS on one device: the training's, and autograd's."""

LINEAR_FILE: Final = "torch/nn/modules/linear.py"

_OF_OWNERS: Final = np.array(
    [
        *(CATEGORIES.index("unknown" if word == "copies" else word) for word in OWNER_CATEGORIES),
        CATEGORIES.index("unknown"),
    ],
    np.int8,
)
"""Category of each of OWNER_CATEGORIES, and of those of newer agents. Copies of the weights have no purpose that is known."""


def categories_of(trace: Trace) -> Codes:
    """Category code of each row of ``trace.lives``. About 0.5 µs per allocation."""
    read = with_phases(trace)
    codes = by_phase(read)
    if not np.any(trace.events.phase >= 0):
        codes[moved_or_made(trace)] = PARAMETERS
    owners = ownership_of(trace)
    known = owners.category != NOBODY
    codes[known] = _OF_OWNERS[owners.category[known]]
    return codes


def by_phase(trace: Trace) -> Codes:
    """Categories by phase intervals only. Owners matter only in whether states are known."""
    lives = trace.lives
    codes = np.full(len(lives), UNKNOWN, np.int8)
    if not len(trace.events):
        return codes
    intervals = phase_intervals_of(trace)
    born, known = intervals.born, intervals.born >= 0
    phase = np.where(known, intervals.phase[born], -1)
    outlives = intervals.outlives
    has_phases = bool(np.any(trace.events.phase > OTHER))  # else all is one interval, and no step is known
    if has_phases:
        codes[known & (phase >= 0) & ~outlives] = TEMPORARIES
    python = lives_with(trace, stacks_in_python(trace))
    again = recomputed(trace, intervals, phase == BACKWARD)
    brief = _are_brief(trace, intervals)
    codes[outlives & brief & np.isin(phase, (FORWARD, EVAL))] = ACTIVATIONS
    codes[outlives & ~brief & (phase == FORWARD) & lives_with(trace, _of_bucket_layouts(trace))] = GRADIENTS
    states_known = has_owned(trace, "optimizer")
    # LBFGS calls a closure and computes after its backward passes.
    stepping = lives_with(trace, stacks_through(trace, file=OPTIMIZER_FILES)) & (phase == BACKWARD)
    as_data = np.isin(phase, (DATA, OTHER)) | ((phase == BACKWARD) & python & ~again)
    as_data |= (phase == STEPPING) & states_known
    codes[outlives & (phase == BACKWARD)] = GRADIENTS
    codes[outlives & as_data] = UNKNOWN
    if has_phases:
        codes[outlives & as_data & brief] = INPUT
    codes[outlives & (stepping | (phase == STEPPING) & (not states_known))] = OPTIMIZER
    codes[outlives & (phase == STEPPING) & states_known & (intervals.age == 0) & brief] = TEMPORARIES
    codes[again] = ACTIVATIONS
    codes = without_stacks(trace, intervals, codes, python)
    if not has_owned(trace, "workspaces"):
        codes[workspaces(trace, intervals)] = WORKSPACES
    return codes


def _of_bucket_layouts(trace: Trace) -> Flags:
    """Whether each stack allocates gradient buckets of DDP, which lays them out again before the second forward pass."""
    in_ddp = stacks_through(trace, file="torch/nn/parallel/distributed.py")
    return in_ddp & stacks_ending_in(trace, frozenset({"_pre_forward"}))


def _are_brief(trace: Trace, intervals: PhaseIntervals) -> Flags:
    """Allocations freed within two steps. Others do not belong to one step.

    Of the allocations that exist at the end, only those of the last step count: outputs live until the next ones replace them.
    Older ones are more than an output, for example gradient buckets.
    """
    lives, events = trace.lives, trace.events
    stays = lives.free_requested_event >= len(events)
    backward = np.flatnonzero(events.phase == BACKWARD)
    last = int(events.step[backward[-1]]) if len(backward) else int(events.step[-1])
    born = events.step[np.maximum(lives.alloc_event, 0)]
    brief: Flags = (intervals.age <= 1) & (~stays | (born >= last))
    return brief


def has_owned(trace: Trace, category: str) -> bool:
    """Whether the agent recorded owners of this category. Then no other allocation belongs to it."""
    return bool(trace.owners and np.any(trace.owners["category"] == OWNER_CATEGORIES.index(category)))


def workspaces(trace: Trace, intervals: PhaseIntervals) -> Flags:
    """Whether each allocation is a cuBLAS workspace: one per thread and stream, for the life of the process.

    More blocks of one size than threads and streams are something else, such as weights of a layer 4,096 wide. Then the size
    proves nothing, and none of them counts. A block of the last step may be an activation. The first one that a linear layer
    makes counts all the same if there is no other: the layer cannot do without.
    """
    lives = trace.lives
    stays = lives.free_requested_event >= len(trace.events)
    found = np.zeros(len(lives), np.bool_)
    most = CUBLAS_THREADS * max(1, len(np.unique(trace.events.stream)))
    in_linear = lives_with(trace, stacks_through(trace, file=LINEAR_FILE))
    for size in CUBLAS_BYTES:
        alive = (lives.requested_bytes == size) & stays
        of_size = alive & ((intervals.age >= 1) | (lives.alloc_event < 0))
        if not of_size.any() and (alive & in_linear).any():
            of_size[np.flatnonzero(alive & in_linear)[0]] = True
        if np.count_nonzero(of_size) <= most:
            found |= of_size
    return found
