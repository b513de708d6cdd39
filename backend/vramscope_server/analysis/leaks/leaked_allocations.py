"""Allocations that a fix of a leak would free, from the scans within a recording."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from vramscope.protocol.series import PHASES
from vramscope_server.analysis.array_types import IntArray
from vramscope_server.analysis.trace.address_lookup import allocation_at
from vramscope_server.analysis.trace.trace import Trace

OF_EVALUATIONS: Final = frozenset({"growing-eval", "no_grad-missing"})
OF_ONE_RESULT: Final = frozenset({"overlap", "overlap-unfreed"})
"""Kinds in which a variable retains one result at a time, and each micro-step makes another one."""
_BACKWARD: Final = PHASES.index("backward")


class CannotTell(Exception):
    """Which allocations are meant, or what became of them, is not in the recording. The message says why."""


@dataclass(frozen=True)
class LeakedAllocations:
    """One leak over one step, from one scan to the next. Allocations are positions in ``trace.lives``."""

    kind: str
    begin: int
    """Number of events before the first scan."""
    end: int
    """Number of events before the second scan."""
    before: IntArray
    """Allocations that were retained at the first scan."""
    after: IntArray
    """Allocations that were retained at the second scan only, and similar ones of the micro-steps between."""
    counted_bytes: int
    """Bytes that were retained at the first scan beside ``before``, extrapolated: their addresses are unknown."""
    needed_until: dict[int, int]
    """Allocation -> event at which the backward pass that needs it has ended."""


def held_by(trace: Trace, kind: str, name: str, file: str | None, line: int | None) -> LeakedAllocations:
    """What the leak of this kind, name and place held. Raises CannotTell."""
    ours = [
        at
        for at, holding in enumerate(trace.holdings)
        if (holding.kind, holding.name, holding.file, holding.line) == (kind, name, file, line)
    ]
    if not ours:
        raise CannotTell("no scan in this recording saw it")
    counted = trace.holdings[ours[0]].counted_bytes
    scans = [(event, known) for event, known in zip(trace.scans, counted, strict=True) if known >= 0]
    if not scans:
        raise CannotTell("it was found after the last scan in this recording")
    begin, known = scans[0]
    step = _step(trace, begin)
    end = next((event for event, _ in scans if _step(trace, event) > step), None)
    if end is None and kind in OF_EVALUATIONS and len(scans) > 1:
        end = scans[-1][0]  # an evaluation makes no steps: some batches, then
    if end is None:
        raise CannotTell("the recording has no whole step between two scans")
    held = trace.held or {
        "event": np.empty(0, np.int64),
        "address": np.empty(0, np.int64),
        "holding": np.empty(0, np.int64),
    }
    life = allocation_at(trace, held["address"], held["event"])
    mine = (held["holding"] == ours[0]) & (life >= 0)
    before = np.unique(life[mine & (held["event"] == begin)])
    after = np.setdiff1d(life[mine & (held["event"] == end)], before)
    if not len(before) and not len(after):
        raise CannotTell("what it held lies in no block of this device's allocator")
    if kind in OF_ONE_RESULT:
        after = np.union1d(after, _of_earlier_micro_steps(trace, after, begin, end))
    needed = (held["holding"] < 0) & (life >= 0) & (held["event"] >= begin) & (held["event"] < end)
    return LeakedAllocations(
        kind, begin, end, before, after, known, _needed_until(trace, held["event"][needed], life[needed])
    )


def _of_earlier_micro_steps(trace: Trace, after: IntArray, begin: int, end: int) -> IntArray:
    """Allocations of earlier micro-steps that the same variable retained.

    A scan runs after the step and sees only those of the last micro-step. Earlier ones of the same stack and size that outlived the
    start of their backward pass belong to the same variable.
    """
    lives, phase = trace.lives, trace.events.phase
    begins = 1 + np.flatnonzero((phase[1:] == _BACKWARD) & (phase[:-1] != _BACKWARD))
    micro_step = np.searchsorted(begins, lives.alloc_event)
    until = np.append(begins, len(phase))[micro_step]
    made = np.flatnonzero(
        (lives.alloc_event >= begin) & (lives.alloc_event < end) & (lives.free_requested_event > until)
    )
    found: list[int] = []
    for life in after[lives.stack[after] >= 0]:
        alike = (lives.stack[made] == lives.stack[life]) & (lives.requested_bytes[made] == lives.requested_bytes[life])
        found += made[alike & (micro_step[made] < micro_step[life])].tolist()
    return np.array(found, np.int64)


def _step(trace: Trace, event: int) -> int:
    """Step of the first event after a scan; after the last event, one more than its step."""
    steps = trace.events.step
    return int(steps[event]) if event < len(steps) else int(steps[-1]) + 1


def _needed_until(trace: Trace, event: IntArray, life: IntArray) -> dict[int, int]:
    """A backward ends where its phase does."""
    phase, step = trace.events.phase, trace.events.step
    until: dict[int, int] = {}
    for begins in np.unique(event):
        at = int(begins)
        if at >= len(phase):
            continue
        other = np.flatnonzero((phase[at:] != phase[at]) | (step[at:] != step[at]))
        ends = at + int(other[0]) if len(other) else len(phase)
        until.update(dict.fromkeys(life[event == begins].tolist(), ends))
    return until
