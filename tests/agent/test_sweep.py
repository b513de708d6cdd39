"""Whose a tensor is: Python's, or only a graph's that saved it."""

from __future__ import annotations

import gc

import torch

from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.tensors import held_by_python, sweep, with_python_owner
from vramscope.leaks.scan.time_budget import TimeBudget


def by_shape(*shape: int) -> list[torch.Tensor]:
    return [one for one in gc.get_objects() if type(one) is torch.Tensor and one.shape == shape]


def test_what_a_graph_alone_holds_is_told_from_what_python_holds_too():
    weight = torch.randn(7, 7, requires_grad=True)

    def forward() -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(5, 7)
        unnamed = (x @ weight).relu()  # saved by what comes behind it
        return (unnamed @ weight).sum(), x

    loss, named = forward()
    alone = torch.randn(3)
    assert held_by_python(alone, 0)
    assert held_by_python(named, 0), "a variable's, and the graph's"
    for found in by_shape(5, 7):
        if found is not named:
            assert not held_by_python(found, 2)  # (references: the list, the variable)
    listed = [torch.randn(5, 3)]
    kept = (listed[0] @ torch.randn(3, 2, requires_grad=True)).sum()
    assert held_by_python(by_shape(5, 3)[0], 0), "an element's, and the graph's"
    listed.clear()
    for found in by_shape(5, 3):
        assert not held_by_python(found, 2)
    assert loss.requires_grad
    assert kept.requires_grad


def test_a_scan_looks_for_holders_of_what_python_holds_alone():
    weight = torch.randn(7, 7, requires_grad=True)
    losses = [(torch.randn(6, 7) @ weight).sum() for _ in range(3)]
    kept = [torch.randn(6, 7) for _ in range(2)]
    time = TimeBudget(10.0)
    live = sweep(TensorKinds(), time)
    found = with_python_owner(live, lambda tensor: False, time, [])
    assert {id(one) for one in by_shape(6, 7)} & found == set(map(id, kept))
    assert set(map(id, losses)) <= found
