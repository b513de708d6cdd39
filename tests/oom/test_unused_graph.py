"""Graphs of models that no optimizer updates: named where nothing can need them, and never elsewhere."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from vramscope.oom.other_models import LiveObjects
from vramscope.oom.unused_graph import is_differentiated, leads_to_none_of, unused_graph, updated_parameters
from vramscope.oom_diagnosis.diagnosis import diagnose
from vramscope.oom_diagnosis.facts import Facts

MIB = 1 << 20


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def test_a_graph_is_unused_only_if_no_leaf_can_be_wanted() -> None:
    teacher, student, x = net(), net(), torch.ones(2, 8)
    updated = set(map(id, student.parameters()))
    assert leads_to_none_of(teacher(x).grad_fn, updated)
    assert not leads_to_none_of(student(x).grad_fn, updated)
    assert not leads_to_none_of(teacher(student(x)).grad_fn, updated), "a critic, through which a generator trains"
    assert not leads_to_none_of((teacher(x) - student(x)).grad_fn, updated)
    assert not leads_to_none_of(teacher(x.clone().requires_grad_()).grad_fn, updated), "the slope at its input"
    assert not leads_to_none_of((teacher(x) * torch.ones(8, requires_grad=True)).grad_fn, updated)
    teacher(x).sum().backward()
    assert not leads_to_none_of(teacher(x).grad_fn, updated), "somebody has computed its gradients"


class Looks(nn.Module):
    """A model whose forward notes whether the running code may differentiate it."""

    def __init__(self, updated: set[int]) -> None:
        super().__init__()
        self.inner, self.updated, self.found = net(), updated, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        frames, frame = [], sys._getframe()
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        self.found = is_differentiated(frames, self.updated)
        out: torch.Tensor = self.inner(x)
        return out


@pytest.mark.parametrize(("kind", "expected"), [("fast weights", True), ("trained", False), ("frozen", False)])
def test_weights_that_the_program_itself_updates_prove_nothing(kind: str, expected: bool) -> None:
    """First-order MAML: ``autograd.grad`` gives the gradients of a copy, and the program applies them."""
    model = Looks(set())
    if kind == "trained":
        model.updated.update(map(id, model.parameters()))
    model.requires_grad_(kind != "frozen")
    model(torch.ones(2, 8))
    assert model.found is expected


def test_a_graph_is_not_unused_while_autograd_grad_reads_it() -> None:
    found, x = [], torch.ones(2, requires_grad=True)

    def hook(gradient: torch.Tensor) -> None:
        frames, frame = [], sys._getframe()
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        found.append(is_differentiated(frames, set()))

    between = x * 2
    between.register_hook(hook)
    torch.autograd.grad(between.sum(), x, retain_graph=True)
    between.sum().backward()
    assert found == [True, False]


def test_parameters_that_are_not_the_models_own_prove_nothing() -> None:
    model = net()
    plain = torch.optim.SGD(model.parameters(), 0.1)
    copies = torch.optim.SGD([nn.Parameter(one.detach().clone()) for one in model.parameters()], 0.1)
    assert updated_parameters(LiveObjects([model], [plain], [], [])) == set(map(id, model.parameters()))
    assert updated_parameters(LiveObjects([model], [copies], [], [])) == set(), "32-bit copies"
    assert updated_parameters(LiveObjects([model], [], [], [])) == set()


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["retained", "detached", "without gradients", "shared", "no optimizer"])
def test_the_variable_with_an_unused_graph_is_named(case: str) -> None:
    teacher = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()).cuda()
    student = nn.Linear(256, 256).cuda()
    updated = set(map(id, student.parameters())) if case != "no optimizer" else set()
    x = torch.empty(16384, 256, device="cuda")
    with torch.set_grad_enabled(case != "without gradients"):
        goal = teacher(x)
    if case == "detached":
        goal = goal.detach()
    losses = [goal.mean()] if case == "shared" else []
    named = unused_graph(0, updated, 64 * MIB)
    if case == "retained":
        assert named is not None and (named.name, named.tensors) == ("goal", 1)
        assert 16 * MIB <= named.held_bytes <= 48 * MIB
    else:
        assert named is None
    assert len(goal) and len(losses) < 2


def test_the_advice_names_it_only_if_the_request_had_fitted() -> None:
    died = Facts(
        phase="forward", step=2, asked_bytes=142 * MIB, free_bytes=34 * MIB, reserved_bytes=1494 * MIB, used_bytes=1460 * MIB,
        total_bytes=2048 * MIB, parameters_bytes=12 * MIB, gradients_bytes=0, optimizer_bytes=24 * MIB, trainable_bytes=12 * MIB,
        other_models_bytes=24 * MIB, expected_state_bytes=24 * MIB, before_forward_bytes=60 * MIB,
        unused_graph_name="goal (a.py:3)",
    )  # fmt: skip
    named = diagnose(replace(died, unused_graph_bytes=843 * MIB))
    assert (named.kind, named.first_aid) == (
        "activations",
        "Compute goal (a.py:3) under torch.no_grad(). No optimizer updates weights through its graph.",
    )
    assert "no_grad" not in diagnose(replace(died, unused_graph_bytes=50 * MIB)).first_aid
    assert "no_grad" not in diagnose(died).first_aid
