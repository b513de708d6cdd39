"""Rows of the running batch are those of the call, whatever a forward does with its arguments."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

from vramscope.oom import batch_rows_from_stack, error_stack


def seen_in(model: nn.Module, *args: Any, **kwargs: Any) -> int | None:
    """Rows found where the model's innermost module runs."""
    seen: list[int | None] = []

    def scan(module: nn.Module, given: Any) -> None:
        frame: FrameType | None = sys._getframe(1)
        seen.append(batch_rows_from_stack.rows_of(error_stack.stack_of(frame)))

    handle = list(model.modules())[-1].register_forward_pre_hook(scan)
    model(*args, **kwargs)
    handle.remove()
    return seen[0]


class Bound(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x.reshape(-1, 4)
        answer: torch.Tensor = self.layer(x)
        return answer


def test_rows_of_a_rebound_argument_are_those_of_the_call() -> None:
    assert seen_in(Bound(), torch.zeros(6, 5, 4)) == 6
    assert seen_in(nn.Sequential(Bound()), torch.zeros(6, 5, 4)) == 6
    assert seen_in(Bound(), x=torch.zeros(6, 5, 4)) == 6
    assert seen_in(Bound(), torch.zeros(6, 5, 4), mask=torch.zeros(3)) == 6


class Sentences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        answer: torch.Tensor = self.layer(batch["ids"])
        return answer


def test_rows_in_containers_and_with_the_batch_second() -> None:
    assert seen_in(Sentences(), {"ids": torch.zeros(7, 4)}) == 7
    recurrent = nn.LSTM(4, 4)
    frames: list[int | None] = []
    recurrent.register_forward_pre_hook(
        lambda *_: frames.append(batch_rows_from_stack.rows_of(error_stack.stack_of(sys._getframe(1))))
    )
    recurrent(torch.zeros(9, 3, 4))
    assert frames == [3]


def test_rows_are_unknown_where_no_module_runs() -> None:
    assert batch_rows_from_stack.rows_of(error_stack.stack_of(sys._getframe())) is None
