"""The time of one look, how its parts share it, and what those calls cost that nothing can interrupt once they have begun.

A pass over all objects of the process takes 20 ms or half a second, as many as there are. So it is known beforehand what it
would take: as the last one in this process took, for each object; before the first, as it is usual.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]

OBJECTS, TENSORS, WANTED, PATHS, GROUPS, HOLDERS, ALL = 0.7, 0.74, 0.77, 0.84, 0.88, 0.93, 0.97
"""Of the time, up to the end of each part of a look: the pass over all objects, which tensors somebody keeps, which of these are
asked for, the ways to them, which belong together, who holds them, and last who holds what no variable leads to. One that ends
early leaves its time to the next; what is left in the end is for steps that were begun within it."""

FOR_THE_LAST: Final = 0.2
"""Of the time, that is kept for the last part in an ordinary process, whatever those before it take: else nobody who has some
100,000 objects in variables would hear of a cycle."""

ORDINARY: Final = 600_000
"""Number of objects of an ordinary training. Up to it every part of a scan does its minimum, however slow the machine is."""

PASS: Final = "pass"
"""Lists all objects, classifies them by type, and frees the list."""
COUNT: Final = "count"
"""Lists them only to count them."""
YOUNG: Final = "young"
"""Lists the young objects, of which the newest are picked. Never measured, because their number is unknown beforehand."""
REFERRERS: Final = "referrers"
"""``gc.get_referrers()`` of one object"""

TYPICAL: Final = {PASS: 140e-9, COUNT: 20e-9, YOUNG: 60e-9, REFERRERS: 60e-9}
"""Typical seconds per object."""
COUNTED_AGAIN: Final = 0.1
"""Objects are counted again when this share of all memory blocks is new or freed."""
TARGETS: Final = 24
"""Maximum number of targets; more of them double the time of ``get_referrers``."""
DOUBT: Final = 0.9
"""A pass that was left out after it was measured once is taken to cost a tenth less the next time: it had a bad moment, maybe."""


class Costs:
    """What passes over all objects take in this process, as they were measured. One a session.

    clock   seconds, rising; by default the CPU time of the thread, so that a machine that is busy looks as far as any other
    """

    def __init__(self, clock: Clock = time.thread_time) -> None:
        self.clock = clock
        self._of_an_object = dict(TYPICAL)
        self._measured: dict[str, list[float]] = {}
        """The last two times of each part."""
        self._counted, self._blocks = 0, 0

    @property
    def objects(self) -> int:
        """As many as the process has at most: each takes a block of memory at least. 1 ms where they are five million."""
        blocks = sys.getallocatedblocks()
        return min(blocks, self._counted + max(0, blocks - self._blocks))

    @property
    def is_counted(self) -> bool:
        """There are about as many as there were when they were counted."""
        blocks = sys.getallocatedblocks()
        return abs(blocks - self._blocks) <= COUNTED_AGAIN * blocks

    def of(self, call: str, objects: int, targets: int = 1) -> float:
        """Seconds that a call is expected to take."""
        return self._of_an_object[call] * objects * (1 + (targets - 1) / TARGETS)

    def measured(self, call: str, objects: int, seconds: float, targets: int = 1) -> None:
        """A call has taken so long. Of two times the shorter one tells: in the other the machine had more to do."""
        if objects:
            now = seconds / objects / (1 + (targets - 1) / TARGETS)
            self._measured[call] = [*self._measured.get(call, []), now][-2:]
            self._of_an_object[call] = min(self._measured[call])

    def counted(self, objects: int) -> None:
        """Records the number of objects."""
        self._counted, self._blocks = objects, sys.getallocatedblocks()

    def left_out(self, *calls: str) -> None:
        """These were too dear."""
        for call in calls:
            if len(self._measured.get(call, ())) == 1:
                self._of_an_object[call] *= DOUBT


class TimeBudget:
    """Restarts with this many seconds."""

    def __init__(self, seconds: float, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.seconds = seconds
        self.is_ordinary = True
        """True if the process has no more objects than an ordinary training, as far as known."""
        self._began = self.costs.clock()

    @property
    def taken(self) -> float:
        return self.costs.clock() - self._began

    def over(self, part: float = ALL, done: int = 1, least: int = 0) -> bool:
        """Whether that part of the time is over; in an ordinary process not before ``least`` things are done."""
        return (done >= least or not self.is_ordinary) and self.taken > self.seconds * part

    def left(self, part: float = ALL) -> float:
        """Seconds up to the end of that part."""
        return max(0.0, self.seconds * part - self.taken)

    def allows(self, seconds: float, part: float = ALL) -> bool:
        """Whether what takes so long ends within that part of the time."""
        return self.taken + seconds <= self.seconds * part
