"""Who is named where one of the objects in a list keeps more and more: what that one has, not the list, nor the loop's variable."""

from __future__ import annotations

import collections
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from scans import watched
from torch import nn


class Recorder:
    def __init__(self) -> None:
        self.rows: list[Any] = []

    def after(self, out: torch.Tensor) -> None:
        self.rows.append({"out": out})


class Window:
    def __init__(self) -> None:
        self.newest: deque[torch.Tensor] = deque(maxlen=4)

    def after(self, out: torch.Tensor) -> None:
        self.newest.append(out.mean())


class Best:
    def __init__(self) -> None:
        self.out: torch.Tensor | None = None

    def after(self, out: torch.Tensor) -> None:
        self.out = out + 1


class Printer:
    def after(self, out: torch.Tensor) -> None:
        pass


def trained(callbacks: list[Any]) -> list[Any]:
    model = nn.Linear(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched() as scans:
        for _ in range(24):
            out = model(torch.randn(512, 32))
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
            kept = out.detach().clone()
            del out
            for callback in callbacks:
                callback.after(kept)
    return [(leak.kind, leak.name, leak.line) for leak in scans[-1].leaks]


ROWS = Recorder.after.__code__.co_firstlineno + 1


@pytest.mark.parametrize(
    "callbacks",
    [
        lambda: [Recorder()],
        lambda: [Printer(), Recorder()],
        lambda: [Recorder(), Printer()],
        lambda: [Window(), Recorder(), Best()],
        lambda: [Recorder(), Best(), Recorder()],
    ],
    ids=["alone", "the last", "the first", "one of each kind", "two of a kind"],
)
def test_of_a_list_of_callbacks_it_is_the_one_that_keeps(callbacks: Callable[[], list[Any]]) -> None:
    assert trained(callbacks()) == [("tensor-growth", "callbacks[*].rows", ROWS)]


class Odd(Recorder):
    pass


def test_of_a_list_that_takes_more_and_more_it_is_the_list_whatever_is_in_it() -> None:
    model = nn.Linear(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[Recorder] = []
    with watched() as scans:
        for step in range(24):
            out = model(torch.randn(512, 32))
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
            record = Odd() if step % 2 else Recorder()
            record.after(out.detach().clone())
            del out
            history.append(record)
    assert [(leak.kind, leak.name) for leak in scans[-1].leaks] == [("tensor-growth", "history")]


@pytest.mark.parametrize("made", [list, partial(collections.deque, maxlen=4)], ids=["lists", "bounded deques"])
def test_lists_that_a_loops_variable_has_in_turn_are_those_of_their_dict(made: Callable[[], Any]) -> None:
    history: dict[str, Any] = {"left": made(), "right": made()}
    model = nn.Linear(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watched() as scans:
        for _ in range(24):
            for view in ("left", "right"):
                past = history[view]
                out = model(torch.randn(512, 32))
                out.square().mean().backward()
                past.append(out.detach().clone())
                del out
            optimizer.step()
            optimizer.zero_grad()
    last = scans[-1]
    found = [(leak.kind, leak.name, leak.count) for leak in last.leaks]
    assert found == ([("tensor-growth", "history", 2 * last.step)] if made is list else [])


def test_lists_that_are_made_anew_and_kept_are_those_of_the_list_that_keeps_them() -> None:
    model = nn.Linear(32, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[list[torch.Tensor]] = []
    with watched() as scans:
        for _ in range(24):
            rows = []
            out = model(torch.randn(512, 32))
            out.square().mean().backward()
            rows.append(out.detach().clone())
            rows.append(out.detach().clone())
            del out
            history.append(rows)
            optimizer.step()
            optimizer.zero_grad()
    last = scans[-1]
    assert [(leak.kind, leak.name, leak.count) for leak in last.leaks] == [("tensor-growth", "history", 2 * last.step)]
