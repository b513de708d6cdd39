"""Rounds, in which the age of things is counted: optimizer steps; where nothing trains, batches of a loader or calls of a model.

After some there is a look whatever happens, after others on suspicion, ever rarer, and again while growth stands.
"""

from __future__ import annotations

from vramscope.leaks.policy import POLICY


class Rounds:
    """How many have ended, what ends one, and whether a look is due."""

    def __init__(self) -> None:
        self.number = 0
        self.per = "step"
        """of series.ROUNDS"""
        self._before = 0
        """rounds of another kind: an evaluation before the training"""
        self.due: set[int] = set()
        """optimizers, by id: behind the next step of each there is a look whatever happens"""
        self.suspicion = ""
        """why there is to be a look at the next moment for it; empty: there is no suspicion"""
        self.look_again_at = 0
        """in which round; 0: no growth stands that could have stopped"""
        self._next_suspicion = POLICY.last_early_scan + 1

    def count(self, per: str) -> None:
        """From now on such a one ends a round."""
        if per != self.per:
            self.per, self._before = per, self.number

    def begin_steps(self) -> int:
        """Steps are told from now on; how many rounds backwards had ended before."""
        ended, self._before = self.number - self._before, self.number
        self.due.clear()
        return ended

    def end(self) -> bool:
        """One is over; whether there is a look after it whatever happens."""
        self.number += 1
        if 0 < self.look_again_at <= self.number:
            self.suspicion = "whether it still grows"
        return self.number - self._before in (
            POLICY.scan_at - POLICY.not_at_calls if self.per == "call" else POLICY.scan_at
        )

    def suspect(self, why: str) -> None:
        """Nothing where the last suspicion was followed only just now."""
        if self.number >= self._next_suspicion:
            self.suspicion = why

    def followed(self) -> None:
        """The suspicion is being followed: the next one has time."""
        self.suspicion = ""
        self._next_suspicion = self.number + max(
            POLICY.suspicion_pause, int(POLICY.suspicion_pause_share * self.number)
        )

    def plan(self, stands: bool, whole: int | None) -> None:
        """Behind a look: when to look again.

        stands   growth does that may stop yet
        whole    round in which what is emptied now and then will hold the most; None: not known
        """
        after = self.number + max(POLICY.rescan_iterations, int(POLICY.rescan_share * self.number)) if stands else 0
        self.look_again_at = min(after, whole or after)
