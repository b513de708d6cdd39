"""Programs for settings other than the recorded ones, of a trace that begins in the middle of a training.

What was there at the beginning was laid out by the recorded settings; under others it would lie elsewhere. So its blocks are
allocated anew, and where the window leaves behind what it found, as whole steps of a training do, it is run more than once:
what comes out then is what the settings make of the steps, and not of the way in which the beginning was laid.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.exact_replay import exact_replay
from vramscope_server.analysis.program_of import derivation_of
from vramscope_server.analysis.simulator.initial import Initial
from vramscope_server.analysis.simulator.program import ALLOC, Program
from vramscope_server.analysis.trace import Trace

Int64 = npt.NDArray[np.int64]


def anew(program: Program, order: Int64) -> Program:
    """The same, with what was there at the beginning allocated in another order: positions among those allocations."""
    first = np.flatnonzero((program.event < 0) & (program.op == ALLOC))
    rows = np.arange(len(program))
    rows[first] = first[order]
    columns = ("op", "item", "size_bytes", "stream", "pool", "event")
    return Program(**{name: getattr(program, name)[rows] for name in columns})


def successors(trace: Trace) -> Int64 | None:
    """For each item that the window frees though it did not allocate it, the item that takes its place at the end; else -1.

    None where the window does not leave behind what it found: it is not whole steps, or they are not alike.
    """
    told, lives = derivation_of(trace), trace.lives
    count = len(trace.events)
    found = np.flatnonzero((lives.alloc_event < 0) & (lives.requested_event < count))
    left = np.flatnonzero((lives.alloc_event >= 0) & (lives.requested_event >= count))
    if len(found) != len(left) or not len(lives):
        return None
    keys = [np.stack([lives.requested_bytes[rows], lives.stream[rows], lives.pool[rows]]) for rows in (found, left)]
    orders = [np.lexsort(key) for key in keys]
    if not np.array_equal(keys[0][:, orders[0]], keys[1][:, orders[1]]):
        return None
    successor = np.full(len(told.program), -1, np.int64)
    successor[told.item_of_life[found[orders[0]]]] = told.item_of_life[left[orders[1]]]
    return successor


def repeated(program: Program, successor: Int64, times: int) -> Program:
    """The program with what comes after its beginning done ``times`` times."""
    body = np.flatnonzero(program.event >= 0)
    there = int(np.count_nonzero((program.event < 0) & (program.op == ALLOC)))
    made = int(np.count_nonzero(program.op[body] == ALLOC))
    item = program.item.astype(np.int64)
    parts = [item]
    for time in range(1, times):
        one = item[body]
        earlier = (one >= 0) & (one < there)
        nxt = one + time * made
        # what it found: left behind by the time before
        nxt[earlier] = successor[one[earlier]] + (time - 1) * made
        parts.append(np.where(one < 0, -1, nxt))
    rows = np.concatenate([np.arange(len(program)), *([body] * (times - 1))])
    same = {name: getattr(program, name)[rows] for name in ("op", "size_bytes", "stream", "pool", "event")}
    return Program(item=np.concatenate(parts).astype(np.int32), **same)


@dataclass(frozen=True)
class Course:
    """One way to replay a trace."""

    program: Program
    initial: Initial | None
    words: str
    """what it takes for granted; "": nothing"""


@lru_cache(maxsize=8)
def courses_of(trace: Trace, *, own: bool) -> list[Course]:
    """How to replay a trace: as it is predicted, then other ways that could be as true, for the band.

    own   under the recorded settings: what was there at the beginning lies where it lay
    """
    told = derivation_of(trace)
    there = np.flatnonzero((told.program.event < 0) & (told.program.op == ALLOC))
    if own or not len(there):
        initial = exact_replay(trace).initial if len(trace.beginning.segments) else None
        return [Course(told.program, initial if own else None, "")]
    return [Course(told.program, None, "")]
