"""Attributes that a custom autograd Function sets on its node, such as ``ctx.name``, are not taken for the node's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vramscope.integrations import plain
from vramscope.memory.variable_contents import NOTHING
from vramscope.oom import timeline
from vramscope.steps import root_modules
from vramscope.steps.clock import StepClock
from vramscope.steps.hooks import LoopHooks
from vramscope.techniques import graph_nodes

in_backward: list[str | None] = []


class Scale(torch.autograd.Function):
    """Sets the attributes that a node of PyTorch has as methods."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.name = "scale"
        ctx.variable = None
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        in_backward.append(timeline.node())
        return gradient * 2


def scaled(model: nn.Module) -> torch.Tensor:
    result: torch.Tensor = Scale.apply(model(torch.ones(2, 4)))  # type: ignore[no-untyped-call]
    return result


def test_models_are_found_below_such_a_node() -> None:
    given, trained = nn.Linear(4, 4), nn.Linear(4, 4)
    assert root_modules._leaves_below(scaled(trained)) == {id(trained.weight), id(trained.bias)}
    hooks = LoopHooks(StepClock(), lambda: NOTHING._replace(models=[given, trained]))
    hooks.install()
    try:
        plain.connect(given, hooks)
        scaled(trained).sum().backward()
    finally:
        hooks.remove()
    assert trained in hooks.roots


def test_the_names_of_a_graph_are_those_of_its_classes() -> None:
    root = scaled(nn.Linear(4, 4))
    assert graph_nodes.first_node_name(root) == "ScaleBackward"
    assert graph_nodes.node_names(root)["ScaleBackward"] == 1
    assert graph_nodes.softmaxes_between_products(root) == 0
    assert not list(graph_nodes.checkpointed_functions(root))


def test_the_node_that_runs_is_named_by_its_class() -> None:
    in_backward.clear()
    scaled(nn.Linear(4, 4)).sum().backward()
    assert in_backward == ["ScaleBackward"]
