"""Copies of a model's weights that variables lead to."""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.oom.weight_copies import in_variables

CHECKPOINT: dict[str, Any] = {}


class Average:
    """An average of the weights, as training scripts write it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: weight.detach().clone() for name, weight in model.named_parameters()}


def found(model: nn.Module) -> list[tuple[str, int]]:
    return list(Counter(name for name, _ in in_variables(dict(model.named_parameters())).copies).items())


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))


def test_a_checkpoint_is_named_by_its_variable_and_line(model: nn.Module) -> None:
    checkpoint = {"model": copy.deepcopy(model.state_dict()), "step": 3}
    [(name, tensors)] = found(model)
    assert re.fullmatch(r"checkpoint\['model'\] \(test_weight_copies\.py:\d+\)", name) and tensors == 4
    del checkpoint
    assert found(model) == []


def test_an_average_is_named_by_its_attribute(model: nn.Module) -> None:
    average = Average(model)
    [(name, tensors)] = found(model)
    assert re.fullmatch(r"average\.shadow \(test_weight_copies\.py:\d+\)", name) and tensors == 4
    del average


def test_a_module_does_not_hide_later_variables(model: nn.Module) -> None:
    modules = sys  # leads to every module, more than are opened
    checkpoint = {"model": copy.deepcopy(model.state_dict())}
    assert [name.partition(" ")[0] for name, _ in found(model)] == ["checkpoint['model']"], modules
    del checkpoint


def test_globals_lists_and_closures_lead_to_copies(model: nn.Module) -> None:
    CHECKPOINT["model"] = copy.deepcopy(model.state_dict())
    try:
        assert [name for name, _ in found(model)] == ["CHECKPOINT['model']"]
    finally:
        CHECKPOINT.clear()
    last_two = [copy.deepcopy(model.state_dict()) for _ in range(2)]
    assert [name.partition(" ")[0] for name, _ in found(model)] == ["last_two[*]"]
    del last_two

    def keeping() -> Any:
        best = copy.deepcopy(model.state_dict())
        return lambda: best

    step = keeping()
    assert [name.partition(" (")[0] for name, _ in found(model)] == ["step closure 'best'"]
    del step


def test_no_code_of_the_users_runs(model: nn.Module) -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"{name} was read")

    proxies = {"proxy": Proxy(), "large": dict.fromkeys(range(200_000))}
    assert found(model) == []
    del proxies


def test_tensors_of_the_same_sizes_under_other_names_are_no_copies(model: nn.Module) -> None:
    replay = [{"state": torch.zeros(8, 8), "action": torch.zeros(2)} for _ in range(4)]
    gradients = [weight.detach().clone() for weight in model.parameters()]
    results = {name: weight * 2 for name, weight in model.named_parameters()}
    assert found(model) == []
    del replay, gradients, results


def test_large_objects_leave_room_for_other_variables(model: nn.Module) -> None:
    large = [{str(n): [[n]] for n in range(200)} for _ in range(200)]
    many = [[[] for _ in range(90)] for _ in range(90)]
    CHECKPOINT["model"] = copy.deepcopy(model.state_dict())
    try:
        assert [name for name, _ in found(model)] == ["CHECKPOINT['model']"]
    finally:
        CHECKPOINT.clear()
    del large, many
