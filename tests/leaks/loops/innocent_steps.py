"""Steps of unusual shape: accumulated, unrolled, of second order, of growing size. No leak in any."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent

from .models import LanguageModel, language_loss, loader, mlp


@innocent("a backward each micro-batch, the optimizer every fourth: losses outlive a backward, gradients stay")
def accumulation(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (x, y) in enumerate(loader(device, steps=80), 1):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


@innocent("the sum of four losses, walked once: graphs pile up for four batches, as they must")
def accumulation_of_the_loss(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total: Any = 0
    for number, (x, y) in enumerate(loader(device, steps=80, rows=64), 1):
        total = total + F.cross_entropy(model(x), y) / 4
        if number % 4 == 0:
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = 0


@innocent("a list of losses within the step, used in one backward and created again")
def losses_of_many_tasks(device: str) -> None:
    body = mlp(device, outputs=64)
    heads = nn.ModuleDict({name: nn.Linear(64, 10) for name in ("colour", "shape", "size")}).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.01)
    for x, y in loader(device, rows=64):
        features = body(x)
        losses = {name: F.cross_entropy(head(features), y) for name, head in heads.items()}
        optimizer.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()


@innocent("the hidden state goes on from step to step, detached")
def hidden_state_detached(device: str) -> None:
    cell = nn.RNNCell(64, 64).to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    hidden = torch.zeros(16, 64, device=device)
    for _ in range(30):
        for _ in range(4):
            hidden = cell(torch.randn(16, 64, device=device), hidden)
        loss = hidden.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hidden = hidden.detach()


@innocent(
    "truncated backpropagation: the graphs of a window of four are kept, older ones are cut off", settles_bytes=8192
)
def truncated_backpropagation(device: str) -> None:
    cell = nn.RNNCell(64, 64).to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    states = collections.deque([torch.zeros(16, 64, device=device)], maxlen=4)
    for step in range(48):
        x = torch.randn(16, 64, device=device)
        states.append(cell(x, states[-1]))
        if step % 4 == 3:
            loss = torch.stack(list(states)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            states = collections.deque([states[-1].detach()], maxlen=4)


@innocent("outputs of a sequence are collected in a list within each step")
def teacher_forcing(device: str) -> None:
    cell, head = nn.GRUCell(32, 32).to(device), nn.Linear(32, 20).to(device)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
    for _ in range(20):
        hidden = torch.zeros(8, 32, device=device)
        outputs = []
        for _ in range(6):
            hidden = cell(torch.randn(8, 32, device=device), hidden)
            outputs.append(head(hidden))
        loss = torch.stack(outputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("create_graph in an inner loop: graphs of second order that the outer backward walks")
def meta_learning(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=16):
        weights = dict(model.named_parameters())
        for _ in range(2):
            inner = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
            slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            weights = {name: w - 0.1 * slope for (name, w), slope in zip(weights.items(), slopes, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del weights, slopes, inner


@innocent("WGAN-GP: the slope's graph is of second order and walked in the same step")
def gradient_penalty(device: str) -> None:
    critic = mlp(device, outputs=1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    for x, _ in loader(device, rows=16):
        mixed = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        loss = (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("backward(create_graph=True) gives gradients with a graph; zero_grad breaks the cycle each step")
def curvature(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=16):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward(create_graph=True)
        trace = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum()
        assert trace.requires_grad
        del trace
        optimizer.step()
        optimizer.zero_grad()


@innocent("sequences of all lengths: what lives at a step's start goes up and down with them", settles_bytes=128 * 1024)
def varying_lengths(device: str) -> None:
    model = LanguageModel(vocabulary=200, length=64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        ids = torch.randint(0, 200, (4, 8 + step * 11 % 13), device=device)
        optimizer.zero_grad()
        language_loss(model(ids), ids).backward()
        optimizer.step()


@innocent(
    "a curriculum: every batch is longer than the one before, and so is all that a step makes", settles_bytes=128 * 1024
)
def curriculum_of_lengths(device: str) -> None:
    model = LanguageModel(vocabulary=64, length=64).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        ids = torch.randint(0, 64, (4, 8 + step), device=device)
        logits = model(ids)
        loss = language_loss(logits, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent(
    "layers thaw one by one: gradients and Adam's moments come step by step, and then no more", settles_bytes=4_000_000
)
def layers_that_thaw(device: str) -> None:
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(8)]).to(device).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(36):
        if step % 2 == 0 and step < 16:
            model[7 - step // 2].requires_grad_(True)
        loss = model(torch.randn(32, 128, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent(
    "the model itself grows: a layer more every five steps, with its gradients and moments", settles_bytes=4_000_000
)
def model_that_grows(device: str) -> None:
    model = nn.Sequential(nn.Linear(128, 128)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(30):
        if step % 5 == 4:
            layer = nn.Linear(128, 128).to(device)
            model.append(layer)
            optimizer.add_param_group({"params": layer.parameters()})
        loss = model(torch.randn(32, 128, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("LBFGS calls a closure many times within a step and keeps up to ten old gradients", settles_bytes=4_000_000)
def lbfgs(device: str) -> None:
    model = mlp(device, hidden=64)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=10)
    x, y = torch.randn(64, 128, device=device), torch.randint(0, 10, (64,), device=device)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(20):
        optimizer.step(closure)


@innocent("the learning-rate finder restores the weights that it copied at the start", settles_bytes=40 * 512)
def learning_rate_finder(device: str) -> Any:
    model = mlp(device)
    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    curve = []
    for x, y in loader(device, steps=30):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append((optimizer.param_groups[0]["lr"], loss.item()))
        optimizer.param_groups[0]["lr"] *= 1.3
    model.load_state_dict(start)
    return curve


@innocent("two optimizers step one after the other; the first's loss lives while the second's graph is built")
def two_optimizers(device: str) -> None:
    body, head = mlp(device, outputs=64), nn.Linear(64, 10).to(device)
    slow, fast = torch.optim.SGD(body.parameters(), lr=0.01), torch.optim.AdamW(head.parameters())
    for x, y in loader(device):
        loss = F.cross_entropy(head(body(x)), y)
        slow.zero_grad()
        fast.zero_grad()
        loss.backward()
        slow.step()
        fast.step()


@innocent("a frozen critic without no_grad: nothing in it asks for gradients, so no graph comes about")
def frozen_weights_without_no_grad(device: str) -> float:
    model, critic = mlp(device), mlp(device, outputs=1).eval().requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    score = 0.0
    for x, y in loader(device, rows=64):
        judged = critic(x)
        score += judged.mean().item()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return score
