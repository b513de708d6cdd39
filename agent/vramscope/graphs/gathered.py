"""What an evaluation without gradients gathers on the device until its end: a list of outputs, which is there once an evaluation.

It is seen at the ends of the first evaluations that take more than a step does (else nothing is saved by its going): what was there
at the end of one, and at the end of the next with other tensors, is gathered there, unless it is the training's, which takes more
from step to step.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from vramscope.graphs.fills import AT_ONCE, FEWEST
from vramscope.graphs.group import Group

MOST_LOOKS: Final = 3
"""at ends of evaluations: one to begin with, one to compare, and one for a trainer that tries it out with a batch or two"""


class Gathered:
    """From evaluation to evaluation. It keeps no tensor."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], list[weakref.ref[Any]]] = {}
        self._looks = 0

    @property
    def has_begun(self) -> bool:
        """An evaluation was looked at: from then on steps may hold what it has gathered, and tell no more whether it matters."""
        return self._looks > 0

    @property
    def wants_look(self) -> bool:
        return self._looks < MOST_LOOKS

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
