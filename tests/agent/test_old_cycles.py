"""Reference cycles that the collector's oldest generation has: a full collection is rare, and they wait long."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.leaks.holders.user_code import Codes
from vramscope.leaks.scan import referrers
from vramscope.leaks.scan.find_holders import find_holders, trace, undisturbed
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import TimeBudget

WEIGHTS = 2 * (64 * 64 + 64) * 4
"""Bytes of a fold's parameters."""


class Schedule:
    def __init__(self, optimizer: torch.optim.Optimizer, factor: Any) -> None:
        self.optimizer, self.factor = optimizer, factor


class Fold:
    """Refers to itself through the schedule's bound method."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.model(torch.randn(2, 64)).sum().backward()
        self.optimizer.step()
        self.schedule = Schedule(self.optimizer, self.factor)

    def factor(self) -> float:
        return 1.0


@pytest.fixture(autouse=True)
def no_collection(few_objects: None) -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()
    gc.collect()  # (a later test asks whether the process has optimizers)


def grown_old() -> None:
    """Put all objects into the oldest generation."""
    gc.enable()
    gc.collect()
    gc.disable()


def groups_of(folds: int, in_use: int = 0) -> list[Any]:
    """Groups that a scan finds without a variable, after this many folds; the last are still in use."""
    kept = [Fold() for _ in range(folds)]
    grown_old()
    optimizers = {id(fold.optimizer) for fold in kept}
    del kept[: folds - in_use]
    time = TimeBudget(5.0)
    with undisturbed():
        explanation = find_holders(TensorKinds(), time, is_retired=lambda optimizer: id(optimizer) in optimizers)
        return trace(explanation, time).groups


def test_everything_of_finished_trainings_counts_once() -> None:
    [group] = groups_of(3)
    assert group.cyclic and group.holder.name == "Fold.schedule"
    # parameters, gradients and two states of Adam; and a count of steps for each of the four parameters
    assert group.held_bytes == 3 * (4 * WEIGHTS + 4 * 4)


def test_what_a_variable_leads_to_is_no_cycle() -> None:
    [group] = groups_of(3, in_use=1)
    assert group.cyclic and group.held_bytes == 2 * (4 * WEIGHTS + 4 * 4)


def test_a_tensor_without_an_owner_is_found_in_an_old_cycle() -> None:
    class Round:
        def __init__(self, rows: int) -> None:
            self.tensor = torch.zeros(rows, 64)
            self.itself = self

    rounds = [Round(3), Round(4)]
    in_use = iter([torch.zeros(5, 64)])
    grown_old()
    tensors = [one.tensor for one in rounds] + gc.get_referents(*gc.get_referents(in_use))[:1]
    rounds.clear()
    answers, _ = referrers.trace(tensors, Codes(), TimeBudget(5.0))
    rows = {answer.cyclic: sorted(len(tensor) for tensor in answer.tensors) for answer in answers}
    assert len(answers) == 2 and rows == {True: [3, 4], False: [5]}
