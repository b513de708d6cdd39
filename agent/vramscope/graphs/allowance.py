"""The time of one look, and what those calls cost that nothing can interrupt once they have begun.

A pass over all objects of the process takes 20 ms or half a second, as many as there are. So it is known beforehand what it
would take: as the last one in this process took, for each object; before the first, as it is usual.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

Clock = Callable[[], float]

PASS: Final = "pass"
"""to list all objects, to tell by their type what they are, and to let go of the list"""
YOUNG: Final = "young"
"""to list the young ones, of which the newest are picked; never measured, as nobody knows beforehand how many they are"""
REFERRERS: Final = "referrers"
"""``gc.get_referrers()`` of one object"""

TYPICAL: Final = {PASS: 140e-9, YOUNG: 60e-9, REFERRERS: 60e-9}
"""seconds an object"""
OBJECTS_OF_A_BLOCK: Final = 0.5
"""that the garbage collector knows of, of all blocks of memory that Python has handed out"""
TARGETS: Final = 24
"""more of them make ``get_referrers`` take twice as long"""
DOUBT: Final = 0.9
"""A pass that was left out is taken to cost a tenth less the next time: it may have been measured in a bad moment."""


class Costs:
    """What passes over all objects take in this process, as they were measured. One a session.

    clock   seconds, rising; by default the CPU time of the thread, so that a machine that is busy looks as far as any other
    """

    def __init__(self, clock: Clock = time.thread_time) -> None:
        self.clock = clock
        self._of_an_object = dict(TYPICAL)
        self._objects_of_a_block = OBJECTS_OF_A_BLOCK

    @property
    def objects(self) -> int:
        """About how many the process has. 1 ms where they are five million."""
        return int(sys.getallocatedblocks() * self._objects_of_a_block)

    def of(self, call: str, objects: int, targets: int = 1) -> float:
        """Seconds that a call is expected to take."""
        return self._of_an_object[call] * objects * (1 + (targets - 1) / TARGETS)

    def measured(self, call: str, objects: int, seconds: float, targets: int = 1) -> None:
        """A call has taken so long."""
        if objects:
            self._of_an_object[call] = seconds / objects / (1 + (targets - 1) / TARGETS)

    def counted(self, objects: int) -> None:
        """There are so many objects now."""
        self._objects_of_a_block = objects / max(1, sys.getallocatedblocks())

    def left_out(self, *calls: str) -> None:
        """These were too dear."""
        for call in calls:
            self._of_an_object[call] *= DOUBT


class Allowance:
    """So many seconds from now on."""

    def __init__(self, seconds: float, costs: Costs | None = None) -> None:
        self.costs = costs or Costs()
        self.seconds = seconds
        self._began = self.costs.clock()

    @property
    def taken(self) -> float:
        return self.costs.clock() - self._began

    def over(self, part: float = 1.0) -> bool:
        """Whether that part of the time is over."""
        return self.taken > self.seconds * part

    def allows(self, seconds: float, part: float = 1.0) -> bool:
        """Whether what takes so long ends within that part of the time."""
        return self.taken + seconds <= self.seconds * part
