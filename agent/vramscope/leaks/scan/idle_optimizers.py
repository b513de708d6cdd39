"""Optimizers that step no more, although others train all their weights. Nothing uses their state unless they step again.

A trial before the training makes one, for instance. Optimizers that take turns are none of these: one counts from the scan
at which as many iterations have passed without its steps as before.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from vramscope.leaks.policy import POLICY
from vramscope.leaks.scan.tensors import tensors_of


class _Idle(NamedTuple):
    """An optimizer that no longer steps, as a scan first saw it."""

    optimizer: weakref.ref[Any]
    since: int
    """Iteration of that scan."""


class IdleOptimizers:
    """One per session, from scan to scan. It keeps no optimizer."""

    def __init__(self) -> None:
        self._idle: dict[int, _Idle] = {}

    def find(self, retired: Sequence[Any], trained: AbstractSet[int], iteration: int) -> list[tuple[Any, list[Any]]]:
        """Such optimizers with the tensors of their state. Several belong to finished trainings, which are judged as models.

        trained   ids of the parameters of optimizers that step
        """
        before, self._idle = self._idle, {}
        found = []
        for optimizer in retired:
            known = before.get(id(optimizer))
            if known is None or known.optimizer() is not optimizer:
                known = _Idle(weakref.ref(optimizer), iteration)
            self._idle[id(optimizer)] = known
            state = tensors_of(optimizer)
            weights = {id(weight) for weight in list(optimizer.__dict__.get("state", ()))}
            if state and weights <= trained and iteration >= 2 * known.since:
                found.append((optimizer, state))
        return found if len(retired) < POLICY.untrained_models else []
