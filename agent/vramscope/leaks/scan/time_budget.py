"""Time budget of one scan, its split between the stages, and the expected cost of calls that cannot be interrupted.

A pass over all objects of the process takes 20 ms to 0.5 s, in proportion to their number. Its cost is estimated before it starts:
from the last pass in this process, or from typical values before the first.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from vramscope.process.tensor_reads import TensorReads

Clock = Callable[[], float]

OBJECTS, TENSORS, WANTED, PATHS, GROUPS, HOLDERS, ALL = 0.7, 0.74, 0.77, 0.84, 0.88, 0.93, 0.97
"""Share of the time at which each stage must end: pass over all objects, retained tensors, wanted tensors, paths to them, groups,
holders, and tensors that no variable leads to. A stage that ends early leaves its time to the next one."""
REACHABLE: Final = PATHS / 2
"""Share of the time for tensors that variables lead to, where a pass over all objects takes too long. The search for their paths
goes through the same objects and needs as much."""

FOR_THE_LAST: Final = 0.2
"""Share of the time reserved for the last stage in an ordinary process. Without it, no cycle would be found in a process with
100,000 objects in variables."""

ORDINARY: Final = 600_000
"""Number of objects of an ordinary training. Up to it every part of a scan does its minimum, however slow the machine is."""
LARGE_SHARE: Final = 16
"""In a process with more objects the minimum is this many times smaller: it takes some milliseconds."""

PASS: Final = "pass"
"""Lists all objects, classifies them by type, and frees the list."""
COUNT: Final = "count"
"""Lists them only to count them."""
YOUNG: Final = "young"
"""Lists the young objects, to take the newest. It is never measured, because their number is unknown before."""
REFERRERS: Final = "referrers"
"""Calls ``gc.get_referrers()`` for one object."""

TYPICAL: Final = {PASS: 140e-9, COUNT: 20e-9, YOUNG: 60e-9, REFERRERS: 60e-9}
"""Typical seconds per object."""
COUNTED_AGAIN: Final = 0.1
"""Objects are counted again when this share of all memory blocks is new or freed."""
TARGETS: Final = 24
"""Maximum number of targets; more of them double the time of ``get_referrers``."""
DOUBT: Final = 0.9
"""Factor on the expected cost of a pass that was skipped after a single measurement, which may have been too high."""


class Costs:
    """Measured cost of passes over all objects of this process. There is one per session.

    clock   returns seconds; by default the CPU time of the thread, so that a scan gets as far on a busy machine
    """

    def __init__(self, clock: Clock = time.thread_time) -> None:
        self.clock = clock
        self._of_an_object = dict(TYPICAL)
        self._measured: dict[str, list[float]] = {}
        """The last two times of each part."""
        self._counted, self._blocks = 0, 0

    @property
    def objects(self) -> int:
        """Upper bound of the number of objects, since each takes at least one block of memory. Costs 1 ms at five million."""
        blocks = sys.getallocatedblocks()
        return min(blocks, self._counted + max(0, blocks - self._blocks))

    @property
    def is_counted(self) -> bool:
        """True if the number of objects has hardly changed since they were counted."""
        blocks = sys.getallocatedblocks()
        return abs(blocks - self._blocks) <= COUNTED_AGAIN * blocks

    def of(self, call: str, objects: int, targets: int = 1) -> float:
        """Seconds that a call is expected to take."""
        return self._of_an_object[call] * objects * (1 + (targets - 1) / TARGETS)

    def measured(self, call: str, objects: int, seconds: float, targets: int = 1) -> None:
        """Record the duration of a call. The shorter of the last two counts, because other work can only lengthen one."""
        if objects:
            now = seconds / objects / (1 + (targets - 1) / TARGETS)
            self._measured[call] = [*self._measured.get(call, []), now][-2:]
            self._of_an_object[call] = min(self._measured[call])

    def counted(self, objects: int) -> None:
        """Record the number of objects."""
        self._counted, self._blocks = objects, sys.getallocatedblocks()

    def left_out(self, *calls: str) -> None:
        """Record that calls were skipped because they cost too much."""
        for call in calls:
            if len(self._measured.get(call, ())) == 1:
                self._of_an_object[call] *= DOUBT


class TimeBudget:
    """Restarts with this many seconds. It is over at once when another thread begins to train."""

    def __init__(self, seconds: float, costs: Costs | None = None, reads: TensorReads | None = None) -> None:
        self.reads = reads or TensorReads()
        self.costs = costs or Costs()
        self.seconds = seconds
        self.is_ordinary = True
        """True if the process has no more objects than an ordinary training, as far as known."""
        self._began = self.costs.clock()

    @property
    def taken(self) -> float:
        return self.costs.clock() - self._began

    def over(self, part: float = ALL, done: int = 1, least: int = 0) -> bool:
        """True if this stage's time is over, and its minimum of ``least`` items done (in a large process a part of them)."""
        if self.reads.others_train:
            return True
        return done >= (least if self.is_ordinary else least // LARGE_SHARE) and self.taken > self.seconds * part

    def left(self, part: float = ALL) -> float:
        """Seconds until this stage must end."""
        return max(0.0, self.seconds * part - self.taken)

    def allows(self, seconds: float, part: float = ALL) -> bool:
        """True if a call of this duration would end within this stage's time."""
        return not self.reads.others_train and self.taken + seconds <= self.seconds * part
