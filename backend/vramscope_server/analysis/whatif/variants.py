"""Ways to replay a trace under other settings if its recording starts in the middle of a training.

The recorded settings determined the layout of the initial blocks. Under other settings it would differ in an unknown way. So a
replay allocates these blocks again, and replays with other layouts show how much the result depends on this assumption.
Repeating a window several times does not change its peaks (measured, docs/fragmentation.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.simulator.initial_state import InitialState
from vramscope_server.analysis.simulator.program import ALLOC, FREE, FREE_COMPLETED, FREE_REQUESTED, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, replay
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.trace import Trace, reserved_after
from vramscope_server.analysis.whatif.baseline_replay import earlier_of, exact_replay
from vramscope_server.analysis.whatif.program import derivation_of
from vramscope_server.analysis.whatif.window_start import WindowStart, beginning_of

ASSUMED: Final = (
    "The recording starts mid-run. Memory that was already allocated is placed again from scratch; cached"
    " memory from before the recording is not modelled."
)


IN_SOME_ORDER: Final = (
    "The recording starts when the model is on the device and almost nothing was freed before. The order of "
    "these allocations is unknown. One that gives the recorded layout is assumed. The band covers other such "
    "orders, and one more or one fewer segment."
)

UNCUT: Final = (
    "With max_split_size_mb, large blocks are never split, so the number of cached blocks from before the"
    " recording cannot be bounded. The band covers other replays of the recording."
)


@dataclass(frozen=True)
class ReplayVariant:
    """One way to replay a trace."""

    program: Program
    initial: InitialState | None
    """State at the start; None if the program allocates the initial blocks itself."""


@dataclass(frozen=True)
class ReplayVariants:
    """The replay that gives the prediction, and equally plausible ones."""

    predicted: ReplayVariant
    afresh: ReplayVariant
    """Replay from an empty allocator. It includes the allocation of the initial blocks, which must fit on a smaller device."""
    others: tuple[ReplayVariant, ...]
    """Equally plausible replays: other allocation orders, and earlier or later completion on other streams."""
    kept: ReplayVariant | None
    """Replay from the recorded layout, with the memory that the run had left behind, if the start is unknown."""
    missed_bytes: int
    """Bytes by which the recorded peak exceeds that of ``afresh`` under the recorded settings; negative: below it."""
    words: str
    """Assumption as a sentence; "" if there is none."""
    to_a_segment: bool = False
    """True if a peak may differ by one segment per heap, because blocks may have other positions."""


@lru_cache(maxsize=8)
def variants_of(trace: Trace, *, own: bool) -> ReplayVariants:
    """Return the ways to replay a trace. ``own``: with the recorded settings, so the initial blocks keep their positions."""
    program = derivation_of(trace).program
    began = beginning_of(trace)
    ways = _ways(trace, began)
    afresh, others = ReplayVariant(ways[0], None), tuple(ReplayVariant(one, None) for one in ways[1:])
    if not len(trace.beginning.segments):
        return ReplayVariants(afresh, afresh, others, None, 0, "")
    kept = ReplayVariant(program, exact_replay(trace).initial)
    is_open = began is not None and began.is_open
    if own:
        return ReplayVariants(kept, afresh, others, None, 0, "", to_a_segment=is_open)
    if began is not None:
        words = IN_SOME_ORDER if is_open else ""
        return ReplayVariants(afresh, afresh, others, None, 0, words, to_a_segment=is_open)
    return ReplayVariants(afresh, afresh, others, kept, _missed(trace, afresh), ASSUMED)


@lru_cache(maxsize=4)
def _ways(trace: Trace, began: WindowStart | None) -> list[Program]:
    """Return plausible programs, the most likely first.

    They differ in the order in which the initial blocks are allocated, and in the time at which pending frees complete.
    """
    program = derivation_of(trace).program
    ways = [program]
    if began is not None:
        ways = [_reordered(program, order) for order in began.orders]
    elif len(trace.beginning.segments):
        there = program.size_bytes[(program.event < 0) & (program.op == ALLOC)]
        ways += [_reordered(program, np.argsort(sign * there, kind="stable")) for sign in (-1, 1)]
    return ways + waiting(ways[0])


def _missed(trace: Trace, afresh: ReplayVariant) -> int:
    settings, _ = trace.parsed_settings
    profile, _ = profile_of(trace.torch)
    done = replay(
        afresh.program,
        settings,
        profile=profile,
        device_bytes=UNLIMITED,
        device_total_bytes=trace.device_total_bytes,
        earlier=earlier_of(trace, afresh.program),
    )
    return int(reserved_after(trace).max()) - done.peak_reserved_bytes


def _reordered(program: Program, order: IntArray) -> Program:
    """Return the program with the initial blocks allocated in another order. ``order``: positions among these allocations."""
    first = np.flatnonzero((program.event < 0) & (program.op == ALLOC))
    rows = np.arange(len(program))
    rows[first] = first[order]
    return program.rows(rows)


def waiting(program: Program) -> list[Program]:
    """Return the program with other waiting times of pending frees: none at all, and twice the recorded ones.

    Empty if no free was pending. Frees that are pending at the end of the history stay so in the second program.
    """
    asked = np.flatnonzero(program.op == FREE_REQUESTED)
    if not len(asked):
        return []
    done = np.flatnonzero(program.op == FREE_COMPLETED)
    request = np.full(int(program.item.max()) + 1, -1)
    request[program.item[asked]] = asked
    since = request[program.item[done]]
    since = np.where(since < 0, done, since)  # requested before the history begins: keep the recorded time
    key = 2 * np.arange(len(program))
    key[done] = 2 * (2 * done - since) + 1
    # the completion of a block that is already free does nothing
    at_once = replace(program, op=np.where(program.op == FREE_REQUESTED, FREE, program.op).astype(np.uint8))
    return [at_once, program.rows(np.argsort(key, kind="stable"))]
