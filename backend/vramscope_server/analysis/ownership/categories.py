"""What each allocation of a trace is for: parameters, gradients, optimizer state, buffers, activations, temporaries, input.

First by owner: what the agent saw to belong to a parameter, a gradient, a state, a buffer or an input when a step began, when
its optimizer ran and when it ended (``owned``). The rest by the *interval* that it was made in (one stay in a phase: the forward
of one micro-batch, its backward), and by whether it outlived it:

    made in    and let go in that interval       and outlives it
    forward    temporaries                    activations, if it goes within two steps; else unknown
    backward   temporaries; what a            gradients; what Python made there, as data
               checkpoint recomputes and
               keeps for its block's
               backward: activations
    optimizer  temporaries                    temporaries, if it goes within the step (a closure runs forward and backward in
                                              between); else optimizer, where owners are not known; else as data
    data,      temporaries                    input, if it goes within two steps; else unknown
    other

What a module's call makes within a backward is recomputed, by whatever checkpoint; what PyTorch's optimizers make there is
theirs.
Workspaces are cuBLAS's: of the sizes that PyTorch gives it, made in a forward or backward and never let go.
A snapshot that tells no phases is read by its stacks (``from_stacks``): what ``.to()`` or a module's ``__init__`` made and nobody
let go is then a parameter, for buffers look the same. All else is unknown, and said to be.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from vramscope.protocol.series import PHASES
from vramscope.protocol.window import OWNER_CATEGORIES
from vramscope_server.analysis.ownership.owners import NOBODY, ownership_of
from vramscope_server.analysis.ownership.phases import PhaseIntervals, phase_intervals_of
from vramscope_server.analysis.ownership.recompute import OPTIMIZER_FILES, alike, recomputed
from vramscope_server.analysis.ownership.stack_categories import moved_or_made, with_phases
from vramscope_server.analysis.ownership.stack_frames import lives_with, stacks_in_python, stacks_through
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
"""a workspace of cuBLAS: before Hopper, and since (PyTorch's CUBLAS_WORKSPACE_CONFIG when nobody sets one)"""

_OF_OWNERS: Final = np.array([CATEGORIES.index(word) for word in OWNER_CATEGORIES], np.int8)


def categories_of(trace: Trace) -> Codes:
    """One code a row of ``trace.lives``. Some 0.5 µs a life."""
    read = with_phases(trace)
    codes = by_phase(read)
    if read is not trace:
        codes[moved_or_made(trace)] = PARAMETERS
    of = ownership_of(trace)
    seen = of.category != NOBODY
    codes[seen] = _OF_OWNERS[of.category[seen]]
    return codes


def by_phase(trace: Trace) -> Codes:
    """What birth and death tell; owners are not asked, but for whether there are any."""
    lives = trace.lives
    codes = np.full(len(lives), UNKNOWN, np.int8)
    if not len(trace.events):
        return codes
    intervals = phase_intervals_of(trace)
    born, known = intervals.born, intervals.born >= 0
    phase = np.where(known, intervals.phase[born], -1)
    outlives = intervals.outlives
    codes[known & (phase >= 0) & ~outlives] = TEMPORARIES
    python = lives_with(trace, stacks_in_python(trace))
    again = recomputed(trace, intervals, phase == BACKWARD)
    passing = _passing(trace, intervals)
    codes[outlives & passing & np.isin(phase, (FORWARD, EVAL))] = ACTIVATIONS
    of_states = owners_tell_states(trace)
    # LBFGS, which calls a closure, works behind its backward passes.
    stepping = lives_with(trace, stacks_through(trace, file=OPTIMIZER_FILES)) & (phase == BACKWARD)
    as_data = np.isin(phase, (DATA, OTHER)) | ((phase == BACKWARD) & python & ~again)
    as_data |= (phase == STEPPING) & of_states
    codes[outlives & (phase == BACKWARD)] = GRADIENTS
    codes[outlives & as_data] = UNKNOWN
    codes[outlives & as_data & passing] = INPUT
    codes[outlives & (stepping | (phase == STEPPING) & (not of_states))] = OPTIMIZER
    codes[outlives & (phase == STEPPING) & of_states & (intervals.age == 0) & passing] = TEMPORARIES
    codes[again] = ACTIVATIONS
    codes = alike(trace, intervals, codes, python)
    codes[workspaces(trace, intervals)] = WORKSPACES
    return codes


def _passing(trace: Trace, intervals: PhaseIntervals) -> Flags:
    """Allocations freed within two steps. Others do not belong to one step.

    Of the allocations that exist at the end, only those of the last step count: outputs live until the next ones replace them.
    Older ones are more than an output, for example gradient buckets.
    """
    lives, events = trace.lives, trace.events
    stays = lives.requested_event >= len(events)
    backward = np.flatnonzero(events.phase == BACKWARD)
    last = int(events.step[backward[-1]]) if len(backward) else int(events.step[-1])
    born = events.step[np.maximum(lives.alloc_event, 0)]
    passing: Flags = (intervals.age <= 1) & (~stays | (born >= last))
    return passing


def owners_tell_states(trace: Trace) -> bool:
    """Whether the agent saw the state of an optimizer: then what it did not see is none."""
    return bool(trace.owners and np.any(trace.owners["category"] == OWNER_CATEGORIES.index("optimizer")))


def workspaces(trace: Trace, intervals: PhaseIntervals) -> Flags:
    """What cuBLAS works in: one block a thread and stream, kept for the life of the process."""
    lives = trace.lives
    stays = lives.requested_event >= len(trace.events)
    return np.isin(lives.requested_bytes, CUBLAS_BYTES) & stays & ((intervals.age >= 1) | (lives.alloc_event < 0))
