"""The state of an optimizer that no longer steps, while another one trains its weights."""

from __future__ import annotations

from typing import Any

import torch
from scans import watched
from torch import nn

WEIGHTS = 64 * 256 + 256
STATE_BYTES = 2 * 4 * WEIGHTS + 2 * 4
"""Two moments of each weight, and a count of steps for each of two parameters."""


class Search:
    """Tries learning rates, and keeps what it tried with."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.trial: torch.optim.Optimizer | None = torch.optim.Adam(model.parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()


def findings_of(scans: list[Any]) -> list[tuple[str, str]]:
    return [(leak.kind, leak.name) for scan in scans for leak in scan.leaks]


def test_the_state_of_a_trial_is_found_where_it_is_kept() -> None:
    search = Search(nn.Linear(64, 256))
    with watched(5.0) as scans:
        assert search.trial is not None
        train(search.model, search.trial, 10)
        train(search.model, torch.optim.SGD(search.model.parameters(), lr=0.1), 80)
    [leak] = scans[-1].leaks
    assert (leak.kind, leak.name) == ("idle-optimizer", "search.trial")
    assert leak.held_bytes == STATE_BYTES and leak.growth_bytes_per_step == 0
    assert leak.file == __file__ and leak.function == "__init__"


def test_it_is_withdrawn_when_the_optimizer_is_deleted() -> None:
    search = Search(nn.Linear(64, 256))
    with watched(5.0) as scans:
        assert search.trial is not None
        train(search.model, search.trial, 10)
        optimizer = torch.optim.SGD(search.model.parameters(), lr=0.1)
        train(search.model, optimizer, 80)
        search.trial = None
        train(search.model, optimizer, 120)
    assert findings_of(scans) and not scans[-1].leaks
    assert [closed.why[-1].reason for closed in scans[-1].closed] == ["in-use-again"]


def test_optimizers_that_take_turns_are_in_use() -> None:
    model = nn.Linear(64, 256)
    optimizers = [torch.optim.Adam(model.parameters()) for _ in range(2)]
    with watched(5.0) as scans:
        for turn in range(8):
            train(model, optimizers[turn % 2], 25)
    assert scans and not findings_of(scans)


def test_a_short_last_stage_is_no_reason_to_report() -> None:
    model = nn.Linear(64, 256)
    adam = torch.optim.Adam(model.parameters())
    with watched(5.0) as scans:
        train(model, adam, 70)
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 50)
    assert scans and not findings_of(scans)


def test_the_state_of_weights_that_nobody_else_trains_is_kept() -> None:
    """The first part of a model was trained and is used: its optimizer may go on with it."""
    first, second = nn.Linear(64, 64), nn.Linear(64, 256)
    of_first = torch.optim.Adam(first.parameters())
    with watched(5.0) as scans:
        train(first, of_first, 10)
        train(second, torch.optim.SGD(second.parameters(), lr=0.1), 80)
    assert scans and not findings_of(scans)
