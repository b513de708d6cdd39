"""What an evaluation without gradients gathers on the device until its end: a list of outputs, or a tensor that they are joined to.

It is there once an evaluation, and no step sees it. So two looks are made within one evaluation, in its middle and at its end, if
one before took more than the training's steps (else nothing is saved by its going). What has grown with the batches, by as many
rows with each, is gathered there, and was begun there; a batch of longer texts has as many rows as any other.

Batches of a loader are counted; of an evaluation without one the calls of models. Where its end is not heard, the look is made
ahead of the last, when as many have come as in the evaluation before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from vramscope.leaks.holders.holder_bytes import Group
from vramscope.leaks.holders.key import HolderKey
from vramscope.leaks.policy import POLICY
from vramscope.steps.phase import EVAL

if TYPE_CHECKING:
    from vramscope.steps.clock import StepClock
    from vramscope.steps.records import PhaseInterval


class Middle(NamedTuple):
    """What holders had in the midst of an evaluation."""

    done: int
    rows: dict[HolderKey, int]


class Gathered:
    """From evaluation to evaluation. It keeps no tensor."""

    def __init__(self) -> None:
        self.batches = 0
        """of loaders, that are done in the evaluation that runs"""
        self.calls = 0
        """of models in it, the one that begins among them"""
        self.may_look = False
        """an evaluation has taken more than a step does, and not enough was seen yet"""
        self.told: set[HolderKey] = set()
        """keys of the holders that were found to gather: what steps see of these is what an evaluation has left"""
        self._done_before = 0
        """of the evaluation before, when its end was heard or its last one began"""
        self._ends_are_heard = self._matters = self._on_card = False
        self._middle: Middle | None = None
        self._looks = self._pairs = 0

    @property
    def done(self) -> int:
        """Batches, or calls where no loader is asked."""
        return self.batches or self.calls - 1

    @property
    def wants_look(self) -> bool:
        """Now that one is done, and where ``may_look``: it is the middle, or the last one is about to begin, as far as is known."""
        if self._middle is None:
            return self.done == max(1, self._done_before // 2)
        return not self._ends_are_heard and self.done == self._done_before

    def has_ended(self) -> bool:
        """A loader's end was heard in an evaluation; whether there is to be a look."""
        self._ends_are_heard = True
        return self.may_look and self._middle is not None and self.done > self._middle.done

    def end_step(self, clock: StepClock, stretches: Sequence[PhaseInterval]) -> None:
        """A step is over in which models were called without gradients: whether that took more than the step before."""
        done, self.batches, self.calls = self.done, 0, 0
        self._middle = None
        if done:
            self._done_before = done
            self._on_card = bool(clock.counters)
            self._matters = self._matters or _takes_more(clock, stretches)
            self.may_look = (
                self._matters and self._pairs < POLICY.evaluation_scan_pairs and self._looks < POLICY.evaluation_scans
            )

    def seen(
        self, groups: Sequence[Group], least_bytes: int, live_bytes: int, in_steps: Collection[HolderKey]
    ) -> Iterator[Group]:
        """At a look: the holders that gather ``least_bytes``; on the CPU, where nobody knows whether a step takes more, half of
        all that lives. None in the middle.

        in_steps   keys of the holders that the training fills
        """
        self._looks += 1
        least_bytes = least_bytes if self._on_card else max(least_bytes, int(POLICY.evaluation_live_share * live_bytes))
        takers = [
            group
            for group in groups
            if group.holder.named
            and not group.graphs
            and group.holder.key not in in_steps
            and not (self._on_card and group.on_cpu)  # as the advice says
        ]
        if self._middle is None:
            self._middle = Middle(self.done, {group.holder.key: group.rows for group in takers})
            return
        middle, self._middle = self._middle, None
        self._pairs += 1
        self.may_look = False  # in this evaluation
        for group in takers:
            then = middle.rows.get(group.holder.key, 0)
            grown = then and group.rows >= POLICY.evaluation_growth_share * then * self.done / middle.done
            if grown and group.held_bytes >= least_bytes:
                self.told.add(group.holder.key)
                yield group


def _takes_more(clock: StepClock, stretches: Sequence[PhaseInterval]) -> bool:
    """Whether the evaluation in this step took more than the whole step before; also where no peaks are counted, as on the CPU."""
    if clock.newest is None:
        return False
    evaluations = [stretch for stretch in stretches if stretch.phase == EVAL]
    devices = range(len(clock.counters))
    return not devices or any(_peak(evaluations, at) > _peak(clock.newest.intervals, at) for at in devices)


def _peak(stretches: Sequence[PhaseInterval], at: int) -> int:
    """Of allocated bytes, on the device at that place."""
    return max((stretch.cuts[at].peak_allocated_bytes for stretch in stretches if at < len(stretch.cuts)), default=0)
