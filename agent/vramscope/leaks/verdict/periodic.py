"""Containers that fill up and are emptied periodically: once an epoch, or when there is enough to write.

While such a container fills, it looks like a leak. How its tensors die shows that it is emptied: all within an iteration, while
those of a window or a cache die one after the other.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from vramscope.leaks.policy import POLICY


class AccumulationCycle:
    """Cycle of one container. It keeps no tensor."""

    def __init__(self, kind: str, started: int, now: Callable[[], int]) -> None:
        """Start to follow a container.

        kind      one of series.LEAK_KINDS, that it would be if nothing emptied it
        started   estimated iteration in which it began to fill
        now       returns the current iteration
        """
        self.kind = kind
        self.started = started
        """Iteration in which it began to fill, or was emptied last."""
        self.after: int | None = None
        """Iterations of a cycle; None if it was never seen emptied."""
        self.full_scans = 0
        """Scans that saw it when it was full."""
        self._now = now
        self._references: list[weakref.ref[Any]] = []
        self._deaths: Counter[int] = Counter()

    @property
    def in_evaluation(self) -> bool:
        return self.kind == "growing-eval"

    def wants_scan(self, *, evaluating: bool) -> bool:
        """True while too few scans saw it when full, at the end of a training epoch or of an evaluation."""
        return self.full_scans < POLICY.full_scans and self.in_evaluation == evaluating

    def watch(self, tensors: Iterable[Any]) -> None:
        """Count the deaths of these tensors, on whichever thread, and of no others."""
        deaths: Counter[int] = Counter()

        def note(reference: weakref.ref[Any]) -> None:
            deaths[self._now()] += 1

        self._deaths = deaths
        self._references = [weakref.ref(tensor, note) for tensor in tensors]

    def note_emptying(self) -> bool:
        """True where all watched tensors died at once; a new cycle starts there."""
        if len(self._references) < POLICY.emptied_tensors:
            return False
        deaths, least = self._deaths, POLICY.emptied_at_once_share * len(self._references)
        at = next((one for one in sorted(deaths) if deaths[one] + deaths[one + 1] >= least), None)
        if at is None:
            return False
        took = max(1, at - self.started)
        # Between two evaluations lie training steps.
        if self.after is None or (took <= POLICY.missed_cycle * self.after and not self.in_evaluation):
            self.after = took
        self.started = at
        self._references = []
        return True

    def may_be_emptied_yet(self, iteration: int, epoch_ended: int) -> bool:
        """True where it was never emptied, and no epoch has ended since it began to fill."""
        passed = self.started < epoch_ended <= iteration - POLICY.iterations_after_epoch
        return self.after is None and not passed and iteration - self.started < POLICY.emptying_wait

    def next_full(self, iteration: int) -> int | None:
        """The next iteration in which it will be full; None if unknown."""
        if self.after is None or self.after < 2 or not self.wants_scan(evaluating=False):
            return None
        last = self.started + self.after - 1
        return last + max(0, -((last - iteration - 1) // self.after)) * self.after

    def is_over(self, iteration: int) -> bool:
        """True where it was emptied and has not been filled again."""
        pause = max(POLICY.refill_iterations, POLICY.refill_share * (self.after or 0))
        return self.after is not None and iteration - self.started > pause


class RestartCycle:
    """How often a value that each step carries on with its graph is restarted."""

    def __init__(self) -> None:
        self.after: int | None = None
        """Fewest steps seen between two starts; None after one start."""
        self._at: int | None = None

    def note(self, at: int) -> None:
        """A scan found that it was started after this step."""
        took = at - self._at if self._at is not None else 0
        if took > POLICY.restart_tolerance:
            self.after = min(took, self.after or took)
        if self._at is None or took > POLICY.restart_tolerance:
            self._at = at
