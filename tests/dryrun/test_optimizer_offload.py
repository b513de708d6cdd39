"""The optimizer on the CPU, as a change of a dry run: each step is without parameters, where that is possible."""

from __future__ import annotations

import pytest
import torch

from vramscope.dry_run.changes.optimizer_offload import OptimizerOffload

pytestmark = pytest.mark.gpu


@pytest.fixture
def change(monkeypatch: pytest.MonkeyPatch) -> OptimizerOffload:
    monkeypatch.setattr(OptimizerOffload, "applied", lambda *words: None)
    return OptimizerOffload()


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(4, 4, device="cuda").parameters(), lr=0.1)


def sizes(optimizer: torch.optim.Optimizer) -> list[int]:
    return [len(group["params"]) for group in optimizer.param_groups]


def test_a_step_is_without_parameters(change: OptimizerOffload, optimizer: torch.optim.Optimizer) -> None:
    change._take(optimizer, (optimizer,), {})
    assert sizes(optimizer) == [0]
    change._restore(optimizer)
    assert sizes(optimizer) == [2]


@pytest.mark.parametrize("passed", ["by position", "by name"])
def test_a_step_with_a_closure_stays(change: OptimizerOffload, optimizer: torch.optim.Optimizer, passed: str) -> None:
    closure = {"closure": lambda: None}
    args = (optimizer, *(closure.values() if passed == "by position" else ()))
    change._take(optimizer, args, {} if passed == "by position" else closure)
    assert sizes(optimizer) == [2]
    assert "closure" in change.reason


def test_the_parameters_come_back_after_a_step_that_failed(
    change: OptimizerOffload, optimizer: torch.optim.Optimizer
) -> None:
    change._take(optimizer, (optimizer,), {})
    change._take(optimizer, (optimizer,), {})  # the step before never ended
    change._restore(optimizer)
    assert sizes(optimizer) == [2]
