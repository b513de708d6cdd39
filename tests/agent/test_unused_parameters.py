"""Parameters that nothing but an optimizer refers to: more and more of them are a leak, and those that code may use are none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import warm
from scans import watched


def growing(scans: list[Any]) -> list[tuple[str, str]]:
    return [(leak.name, leak.function) for leak in scans[-1].leaks if leak.kind == "tensor-growth"]


def tasks(kind: type[torch.optim.Optimizer], kept: list[nn.Module] | None = None) -> list[Any]:
    """Looks at a training that has a new head for each task, in one optimizer."""
    body = nn.Linear(8, 64)
    optimizer = kind(body.parameters(), lr=0.1)
    with watched() as scans:
        for _ in range(20):
            head = nn.Linear(64, 200)
            if kept is not None:
                kept.append(head)
            optimizer.add_param_group({"params": list(head.parameters())})
            for _ in range(5):
                head(body(torch.ones(2, 8))).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return scans


def alone(check: str) -> None:
    """Call a function of this file in a process of its own: a process with many tests has more objects than one scan visits."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import {Path(__file__).stem} as checks; checks.{check}"
    done = warm.run(code, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(("kind", "name"), [("SGD", "optimizer.param_groups"), ("Adam", "optimizer.state")])
def test_heads_that_only_the_optimizer_has_are_found_where_they_are_added(kind: str, name: str) -> None:
    alone(f"check_heads({kind!r}, {name!r})")


def check_heads(kind: str, name: str) -> None:
    found = growing(tasks(getattr(torch.optim, kind)))
    assert found == [(name, "tasks")], found


def test_a_log_in_a_parameter_group_is_no_parameter() -> None:
    alone("check_log()")


def check_log() -> None:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD([{"params": list(model.parameters()), "log": []}], lr=0.1)
    with watched() as scans:
        for step in range(60):
            model(torch.ones(2, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.param_groups[0]["log"].append(torch.full((4096,), float(step)))
    (leak,) = scans[-1].leaks
    assert leak.name == "optimizer.param_groups" and "parameters that only" not in leak.advice


def test_heads_that_a_list_has_too_are_in_use() -> None:
    assert not growing(tasks(torch.optim.Adam, []))


def test_weights_of_a_constant_number_that_only_the_optimizer_has_are_no_leak() -> None:
    """Copies in float32 of a model's weights, say."""
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64))
    masters = torch.optim.SGD([weight.detach().clone().requires_grad_() for weight in model.parameters()], lr=0.1)
    with watched() as scans:
        for _ in range(60):
            model(torch.ones(2, 64)).sum().backward()
            for master, weight in zip(masters.param_groups[0]["params"], model.parameters(), strict=True):
                master.grad, weight.grad = weight.grad, None
            del master, weight
            masters.step()
    assert not growing(scans)
