"""A variable that keeps the graph of a skipped batch until the next forward has replaced it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from vramscope.oom import late_suspects
from vramscope.oom.rebound_names import rebound_names

needs_ranges = pytest.mark.skipif(sys.version_info < (3, 11), reason="bytecode without ranges of lines")


class Probe:
    """A call that notes which names its caller's statement assigns again."""

    def __init__(self) -> None:
        self.found: list[list[str]] = []

    def __call__(self, *arguments: Any) -> Any:
        self.found.append(sorted(rebound_names(caller_of_probe())))
        return self

    def then(self) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter((1, 2))

    def __add__(self, other: Any) -> Any:
        return self


def caller_of_probe() -> FrameType:
    return sys._getframe(2)


@needs_ranges
def test_only_names_that_the_statement_assigns_and_does_not_read_are_rebound() -> None:
    ask = Probe()
    loss = hidden = total = ask
    loss = ask().then()
    loss = ask(
        1,
        2,
    )
    loss, hidden = ask(hidden)
    total = total + ask()
    total += ask()
    ask()
    for total in ask():
        hidden = total
        break
    if ask() and total:
        hidden = ask(loss)
    table = {}
    table["a"] = ask()
    assert ask.found == [["loss"], ["loss"], ["loss"], [], [], [], [], [], ["hidden"], []]
    assert hidden is not None and table

    def inner() -> list[Any]:
        return [ask(), total]

    before = len(ask.found)
    assert inner() and ask.found[before:] == [[]]


class Runs(nn.Module):
    """A forward in which the search is made, if it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.looks = False
        self.found: list[tuple[str, str]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.looks:
            frames, frame = [], sys._getframe()
            while frame is not None:
                frames.append(frame)
                frame = frame.f_back
            self.found = [(one.kind, one.name) for one in late_suspects.retained_by_skipped_forward(frames, 3)]
        out: torch.Tensor = self.layers(x)
        return out


def skipped(net: Runs, x: torch.Tensor) -> None:
    loss = net(x).square().mean()
    net.looks = True
    loss = net(x).square().mean()
    loss.backward()


def views(net: Runs, x: torch.Tensor) -> None:
    """Both graphs are needed: the sum has them."""
    out = net(x)
    total = out.mean()
    net.looks = True
    out = net(x)
    (total + out.mean()).backward()


def collected(net: Runs, x: torch.Tensor) -> None:
    losses = []
    loss = net(x).square().mean()
    losses.append(loss)
    net.looks = True
    loss = net(x).square().mean()
    torch.stack([*losses, loss]).sum().backward()


def second_view(net: Runs, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor
    out = net(x)
    return out.mean()


def same_name(net: Runs, x: torch.Tensor) -> None:
    """The caller's variable has the name that the called function assigns, and its graph is needed."""
    out = net(x)
    net.looks = True
    total = out.mean() + second_view(net, x)
    total.backward()


def tree(net: Runs, x: torch.Tensor, depth: int) -> torch.Tensor:
    if not depth:
        return net(x)
    left = tree(net, x, depth - 1)
    net.looks = depth == 2
    right = tree(net, x, depth - 1)
    return left + right


def recursive(net: Runs, x: torch.Tensor) -> None:
    """The outer call of a function needs what its inner call assigns."""
    tree(net, x, 2).mean().backward()


def many_collected(net: Runs, x: torch.Tensor) -> None:
    """Of the graphs in a long list only some are walked."""
    losses = []
    for _ in range(60):
        out = net(x[:1024])
        losses.append(out.square().mean())
    net.looks = True
    out = net(x)
    torch.stack([*losses, out.mean()]).sum().backward()


def trained(net: Runs, x: torch.Tensor) -> None:
    loss = net(x).square().mean()
    loss.backward()
    net.looks = True
    loss = net(x).square().mean()
    loss.backward()


def recurrent(net: Runs, x: torch.Tensor) -> None:
    hidden = net(x)
    net.looks = True
    hidden = net(hidden)
    hidden.mean().backward()


@needs_ranges
@pytest.mark.gpu
@pytest.mark.parametrize("loop", [skipped, views, collected, same_name, recursive, many_collected, trained, recurrent])
def test_only_a_graph_that_nothing_else_needs_is_named(loop: Callable[[Runs, torch.Tensor], None]) -> None:
    net = Runs().cuda()
    loop(net, torch.empty(8192, 256, device="cuda"))
    assert net.found == ([("overlap-unfreed", "loss")] if loop is skipped else [])
