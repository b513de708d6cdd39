"""What an evaluation without gradients gathers on the device until its end: a list of outputs, which is there once an evaluation.

It is seen at the ends of the first evaluations that take more than a step does (else nothing is saved by its going): what was there
at the end of one, and at the end of the next with other tensors, is gathered there, unless it is the training's, which takes more
from step to step.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.graphs.fills import AT_ONCE, FEWEST
from vramscope.graphs.group import Group
from vramscope.steps.clock import EVAL

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock

MOST_LOOKS: Final = 3
"""at ends of evaluations: one to begin with, one to compare, and one for a trainer that tries it out with a batch or two"""


class Gathered:
    """From evaluation to evaluation. It keeps no tensor."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], list[weakref.ref[Any]]] = {}
        self._looks = 0

    def wants_look(self, clock: StepClock) -> bool:
        """A pass over a loader has ended: whether it was that of an evaluation which is to be looked at."""
        if clock.phase != EVAL or self._looks >= MOST_LOOKS:
            return False
        # (Once one was looked at, steps may hold what it has gathered, and tell no more whether it matters.)
        return self._looks > 0 or takes_more_than_a_step(clock)

    def seen(
        self, groups: Sequence[Group], least_bytes: int, live_bytes: int, in_steps: Collection[tuple[str, ...]]
    ) -> Iterator[Group]:
        """At the end of an evaluation: those that gather ``least_bytes``, of a training on a card there; on the CPU, where nobody
        knows whether a step takes more, half of all that lives.

        in_steps   keys of the holders that the training fills
        """
        before, self._before = self._before, {}
        self._looks += 1
        card = any(not group.on_cpu for group in groups)
        least_bytes = least_bytes if card else max(least_bytes, live_bytes // 2)
        for group in groups:
            holder = group.holder
            if not holder.container or not holder.named or group.graphs or holder.key in in_steps:
                continue
            if card and group.on_cpu:
                continue  # as the advice says
            if group.tensors < FEWEST or group.held_bytes < least_bytes:
                continue
            self._before[holder.key] = group.references
            then = before.get(holder.key, [])
            if then and sum(reference() is None for reference in then) >= AT_ONCE * len(then):
                yield group


def takes_more_than_a_step(clock: StepClock) -> bool:
    """Whether what runs since the last cut took more than the newest step; also where no peaks are counted, as on the CPU."""
    if clock.newest is None:
        return False
    cuts = [stretch.cuts for stretch in clock.newest.stretches]
    return not clock.counters or any(
        counter.so_far().peak_allocated_bytes
        > max((of[at].peak_allocated_bytes for of in cuts if at < len(of)), default=0)
        for at, counter in enumerate(clock.counters)
    )
