"""By how much the reserved bytes of a recorded step fall if leaked memory is freed earlier.

The simulator replays the recorded program twice, with and without the leak. The window starts in the middle of the run, and
without the leak its initial layout would differ in an unknown way. So both replays allocate the initial blocks again, in three
orders: by address, by rising size and by falling size. A fourth comparison keeps the recorded layout, with holes for the leaked
blocks. The first result is the prediction, and all four are its band. Memory cached for other reasons is the same in both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.leaks.release_points import GONE
from vramscope_server.analysis.simulator.initial_state import INACTIVE, InitialState
from vramscope_server.analysis.simulator.program import ALLOC, FREE, FREE_COMPLETED, FREE_REQUESTED, Program
from vramscope_server.analysis.simulator.replay import UNLIMITED, replay
from vramscope_server.analysis.simulator.versions import profile_of
from vramscope_server.analysis.trace.trace import Trace
from vramscope_server.analysis.whatif.baseline_replay import USUAL_TOTAL_BYTES, earlier_of
from vramscope_server.analysis.whatif.program import derivation_of, initial_of

_COLUMNS = ("op", "item", "size_bytes", "stream", "pool", "event")


def reserved_falls(trace: Trace, lives: IntArray, at: IntArray, end: int) -> list[int]:
    """Return by how much peak reserved up to event ``end`` falls, the prediction first. Takes about 2 µs for each event.

    lives, at   allocations that are freed, and before which event (``releases``)

    Raises ValueError if the run used another allocator than PyTorch's native one.
    """
    derivation = derivation_of(trace)
    items = derivation.item_of_life[lives]
    before, after = (
        _rows(program, np.flatnonzero(program.event < end))
        for program in (derivation.program, _with_releases(derivation.program, items, at))
    )
    falls = [_peak(trace, before) - _peak(trace, after)]
    if len(trace.beginning.segments):
        falls += [_peak(trace, _by_size(before, sign)) - _peak(trace, _by_size(after, sign)) for sign in (1, -1)]
        initial = initial_of(trace)
        with_holes = _with_holes(initial, items[at == GONE])
        falls.append(_peak(trace, before, initial) - _peak(trace, after, with_holes))
    return [max(0, fall) for fall in falls]


def _peak(trace: Trace, program: Program, initial: InitialState | None = None) -> int:
    settings, _ = trace.parsed_settings
    profile, _ = profile_of(trace.torch)
    total = trace.device_total_bytes or USUAL_TOTAL_BYTES
    done = replay(
        program,
        settings,
        profile=profile,
        device_bytes=UNLIMITED,
        device_total_bytes=total,
        initial=initial,
        earlier=earlier_of(trace, program),
    )
    return done.peak_reserved_bytes


def _with_releases(program: Program, items: npt.NDArray[np.int32], at: IntArray) -> Program:
    """Return the program with other releases of these items. Items that are GONE are never allocated."""
    gone, moved = at == GONE, at != GONE
    frees = np.isin(program.op, (FREE, FREE_REQUESTED, FREE_COMPLETED)) & np.isin(program.item, items)
    kept = _rows(program, np.flatnonzero(~frees & ~np.isin(program.item, items[gone])))
    count = int(moved.sum())
    zeros = np.zeros(count, np.int64)
    added = {"op": np.full(count, FREE), "item": items[moved], "event": at[moved]}
    columns = {name: np.concatenate([added.get(name, zeros), getattr(kept, name)]) for name in _COLUMNS}
    # A release before an event is its first operation.
    order = np.argsort(columns["event"], kind="stable")
    return Program(**{name: column[order].astype(getattr(program, name).dtype) for name, column in columns.items()})


def _by_size(program: Program, sign: int) -> Program:
    """Return the program with its initial blocks allocated in the order of their sizes; ``sign`` is -1 for the largest first."""
    first = np.flatnonzero((program.event < 0) & (program.op == ALLOC))
    rows = np.arange(len(program))
    rows[first] = first[np.argsort(sign * program.size_bytes[first], kind="stable")]
    return _rows(program, rows)


def _rows(program: Program, rows: IntArray) -> Program:
    return Program(**{name: getattr(program, name)[rows] for name in _COLUMNS})


def _with_holes(initial: InitialState, gone: npt.NDArray[np.int32]) -> InitialState:
    """Return the initial layout without these items. A segment that had nothing else is left out."""
    let_go = np.isin(initial.block_item, gone) & (initial.block_item >= 0)
    state = np.where(let_go, INACTIVE, initial.block_state)
    free, home = state == INACTIVE, initial.block_segment
    joins = np.zeros(len(free), np.bool_)
    joins[1:] = free[1:] & free[:-1] & (home[1:] == home[:-1])
    first = np.flatnonzero(~joins)
    size = np.add.reduceat(initial.block_size_bytes, first)
    touched = np.unique(home[let_go])
    whole = first[free[first] & (size == initial.segment_size_bytes[home[first]]) & np.isin(home[first], touched)]
    keep = np.ones(len(initial.segment_address), np.bool_)
    keep[home[whole]] = False
    number = np.cumsum(keep) - 1
    stays = keep[home[first]]
    blocks = first[stays]
    return initial._replace(
        **{name: getattr(initial, name)[keep] for name in InitialState._fields if name.startswith("segment_")},
        block_segment=number[home[blocks]].astype(np.int64),
        block_address=initial.block_address[blocks],
        block_size_bytes=size[stays],
        block_requested_bytes=np.where(free, 0, initial.block_requested_bytes)[blocks],
        block_state=state[blocks].astype(np.int64),
        block_item=np.where(let_go, -1, initial.block_item)[blocks].astype(np.int64),
    )
