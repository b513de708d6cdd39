"""Memory retained from the last step, found when memory runs out in the next step's forward."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vramscope.oom import late_suspects

pytestmark = pytest.mark.gpu

RETAINED = ("train.py", 7, "main")


def looked_at(model: nn.Module, *, retain_graph: bool, let_go: bool) -> list[tuple[str, str]]:
    """(kind, name) of each suspect in the second of two forwards."""
    x = torch.empty(4096, 256, device="cuda")
    loss = model(x).square().mean()
    loss.backward(retain_graph=retain_graph)
    if let_go:
        del loss
    boundary = torch._C._autograd._get_sequence_nr()
    hidden = model(x)  # of the step that runs: it is needed
    found = late_suspects.retained_from_last_step(boundary, RETAINED if retain_graph else None, 1)
    assert hidden.requires_grad
    for leak in found:
        assert leak.held_bytes >= 2 * 4096 * 256 * 4 and leak.exclusive_bytes == leak.held_bytes
        assert "drop retain_graph=True (train.py:7)" in leak.advice
    return [(leak.kind, leak.name) for leak in found]


def test_the_variable_of_the_last_step_is_named() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)).cuda()
    assert looked_at(model, retain_graph=True, let_go=False) == [("overlap-unfreed", "loss")]
    assert looked_at(model, retain_graph=True, let_go=True) == []
    assert looked_at(model, retain_graph=False, let_go=False) == [], "one number is left of it"


def test_gradients_with_a_graph_are_no_older_than_their_loss() -> None:
    """With create_graph=True autograd's thread of the device makes nodes. It numbers them by itself, from 0."""
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    for _ in range(40):
        model(torch.empty(8, 2048, device="cuda")).sum().backward()
    boundary = torch._C._autograd._get_sequence_nr()
    loss = model(torch.empty(64, 2048, device="cuda")).square().mean()
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    assert max(one.grad_fn._sequence_nr() for one in slopes if one.grad_fn is not None) < boundary
    assert late_suspects.retained_from_last_step(boundary, None, 5) == []
