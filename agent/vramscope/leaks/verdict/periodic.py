"""Containers that fill and are emptied, again and again: what a training gathers over an epoch, or until there is enough to write.

While one fills it looks like one that takes more for ever. Whether it is emptied shows in how its tensors go: all at once, while
those of a window or of a cache go one after the other.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from vramscope.leaks.policy import POLICY


class Fill:
    """Of one container. It keeps no tensor."""

    def __init__(self, kind: str, began: int, now: Callable[[], int]) -> None:
        """
        kind    of series.LEAK_KINDS, that it would be if nothing emptied it
        began   round in which it began to fill, as far as is known
        now     gives the round that it is
        """
        self.kind = kind
        self.began = began
        """round in which it began to fill, or was emptied last"""
        self.after: int | None = None
        """rounds that it took to fill, of late; None: it was never seen to be emptied"""
        self.whole_looks = 0
        """when it was as full as it gets"""
        self._now = now
        self._references: list[weakref.ref[Any]] = []
        self._gone: Counter[int] = Counter()

    @property
    def in_evaluation(self) -> bool:
        return self.kind == "growing-eval"

    def wants_look(self, *, evaluating: bool) -> bool:
        """It was not yet seen often enough as full as it gets, at the end of a pass of the training or of an evaluation."""
        return self.whole_looks < POLICY.full_scans and self.in_evaluation == evaluating

    def watch(self, things: Iterable[Any]) -> None:
        """See when these go, on whichever thread, and no others any more."""
        gone: Counter[int] = Counter()

        def note(reference: weakref.ref[Any]) -> None:
            gone[self._now()] += 1

        self._gone = gone
        self._references = [weakref.ref(thing, note) for thing in things]

    def note_emptying(self) -> bool:
        """Whether all of it went at once since it was watched; it fills anew from then on."""
        if len(self._references) < POLICY.emptied_tensors:
            return False
        gone = self._gone
        at = next(
            (
                one
                for one in sorted(gone)
                if gone[one] + gone[one + 1] >= POLICY.emptied_at_once_share * len(self._references)
            ),
            None,
        )
        if at is None:
            return False
        took = max(1, at - self.began)
        # (Between two evaluations lie the training's steps.)
        if self.after is None or (took <= POLICY.missed_cycle * self.after and not self.in_evaluation):
            self.after = took
        self.began = at
        self._references = []
        return True

    def may_be_emptied_yet(self, rounds: int, epoch_ended: int) -> bool:
        """It never was, nor has an epoch ended since it began to fill: the last one did in that round."""
        passed = self.began < epoch_ended <= rounds - POLICY.iterations_after_epoch
        return self.after is None and not passed and rounds - self.began < POLICY.emptying_wait

    def next_whole(self, rounds: int) -> int | None:
        """The round after ``rounds`` in which it will hold the most, if it goes on as before; None: that is not known."""
        if self.after is None or self.after < 2 or not self.wants_look(evaluating=False):
            return None
        last = self.began + self.after - 1
        return last + max(0, -((last - rounds - 1) // self.after)) * self.after

    def is_over(self, rounds: int) -> bool:
        """It was emptied, and has not been filled again since. (It was not seen with anything.)"""
        return self.after is not None and rounds - self.began > max(
            POLICY.refill_iterations, POLICY.refill_share * self.after
        )


class Begun:
    """Of a value that is carried on from step to step with its graph: how long it takes until it is begun anew."""

    def __init__(self) -> None:
        self.after: int | None = None
        """steps between two beginnings, the fewest seen; None: it was begun once, as far as is known"""
        self._at: int | None = None

    def note(self, at: int) -> None:
        """A look found that it began behind this step."""
        took = at - self._at if self._at is not None else 0
        if took > POLICY.restart_tolerance:
            self.after = min(took, self.after or took)
        if self._at is None or took > POLICY.restart_tolerance:
            self._at = at
