"""Loops of methods from papers, labelled before the detector had seen any. Of every second one only the score was read."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent, leaks

from .models import FLOAT_BYTES, loader, mlp

WEIGHTS = (128 * 256 * FLOAT_BYTES, 256 * FLOAT_BYTES, 256 * 10 * FLOAT_BYTES, 10 * FLOAT_BYTES)
"""Bytes of each parameter of ``mlp``."""


class Experts(nn.Module):
    """Notes how evenly its gate uses the experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts, self.head = nn.Linear(128, 4), nn.Linear(128, 4 * 64), nn.Linear(64, 10)
        self.balance: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share = self.gate(x).softmax(-1)
        evenness = share.mean(0).square().sum()
        self.balance.append(evenness)  # <- leak of gate_of_experts; fix: self.balance[:] = [evenness]
        return self.head((self.experts(x).relu().unflatten(1, (4, 64)) * share[:, :, None]).sum(1))


@leaks("growing", holder="balance", bytes_each=FLOAT_BYTES, nodes=True)
def gate_of_experts(device: str) -> None:
    model = Experts().to(device)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader(device, steps=40):
        loss = F.cross_entropy(model(x), y) + 0.01 * model.balance[-1]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@innocent("sparse gradients of an accumulation get longer with each micro-step, and end with the step")
def sparse_gradients_of_an_accumulation(device: str) -> None:
    words = nn.EmbeddingBag(20000, 64, sparse=True).to(device)
    head = nn.Linear(64, 10).to(device)
    optimizer = torch.optim.SGD([*words.parameters(), *head.parameters()], lr=0.1)
    for n in range(96):
        ids = torch.randint(0, 20000, (256, 16), device=device)
        head(words(ids)).square().mean().backward()
        if n % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@leaks(("cycle", "growing"), holder=("watch", "other", "lambda", "hidden"), bytes_each=32 * 256 * FLOAT_BYTES)
def hook_that_reads_its_tensor(device: str) -> None:
    """The tensor has the hook, the hook's function has the tensor."""
    ratios: list[float] = []

    def watch(tensor: torch.Tensor) -> None:
        other = tensor  # fix here: other = tensor.detach()
        tensor.register_hook(lambda grad: ratios.append((grad.norm() / other.norm()).item()))  # <- leak

    model = mlp(device)
    optimizer = torch.optim.Adam(model.parameters())
    for x, y in loader(device, steps=40):
        hidden = model[0](x)
        watch(hidden)
        F.cross_entropy(model[1:](hidden), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@leaks("growing", holder="weights", bytes_each=WEIGHTS)
def weights_by_learned_rates(device: str) -> None:
    """The rates are parameters: their product with a gradient saves the gradient, and the new weights have its graph."""
    model = mlp(device)
    weights = {name: one.detach().requires_grad_() for name, one in model.named_parameters()}
    rates = {name: torch.full_like(one, 0.01, requires_grad=True) for name, one in weights.items()}
    for x, y in loader(device, steps=40):
        loss = F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)
        slopes = dict(zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True))
        weights = {name: weights[name] - rates[name] * slopes[name] for name in weights}  # <- leak
        # fix here: weights = {name: one.detach().requires_grad_() for name, one in weights.items()}


@innocent("the deviations of a Gaussian over the weights are as many as its rank", settles_bytes=12 * sum(WEIGHTS))
def deviations_of_averaged_weights(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    mean = torch.cat([one.detach().flatten() for one in model.parameters()])
    deviations: list[torch.Tensor] = []
    for n, (x, y) in enumerate(loader(device, steps=60)):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if n % 2:
            newest = torch.cat([one.detach().flatten() for one in model.parameters()])
            mean.lerp_(newest, 2 / (n + 3))
            deviations.append(newest - mean)
            if len(deviations) > 12:
                deviations.pop(0)


@leaks(("tensor-growth", "idle-optimizer", "growing"), holder=("optimizer", "param_groups", "head"))
def heads_of_earlier_tasks(device: str) -> None:
    """Each task has a head of its own; the optimizer has the heads of all tasks, with gradients and moments."""
    body = nn.Sequential(nn.Linear(128, 256), nn.ReLU()).to(device)
    optimizer = torch.optim.Adam(body.parameters())
    for task in range(10):
        head = nn.Linear(256, 64 + task).to(device)
        parts = [*body.parameters(), *head.parameters()]
        optimizer.add_param_group({"params": parts[2:]})  # <- leak; fix: optimizer = torch.optim.Adam(parts)
        for x, _ in loader(device, steps=6):
            optimizer.zero_grad()
            head(body(x)).square().mean().backward()
            optimizer.step()


@leaks("tensor-growth", holder="backups", every=2, bytes_each=tuple(2 * one for one in WEIGHTS))
def backups_of_the_moments(device: str) -> None:
    """To go back to where the loss was low. Only the last one is ever read."""
    model = mlp(device)
    optimizer = torch.optim.Adam(model.parameters())
    backups: list[dict[str, Any]] = []
    for n, (x, y) in enumerate(loader(device, steps=40)):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if backups and loss.item() > 1e3:
            optimizer.load_state_dict(backups[-1])
        optimizer.step()
        if n % 2:
            state = copy.deepcopy(optimizer.state_dict())
            backups.append(state)  # <- leak; fix: backups = [state]


@leaks("tensor-growth", holder="slopes", bytes_each=sum(WEIGHTS))
def tuple_of_gradients(device: str) -> None:
    """A new tuple in each step: the angle between the last two is all that is read."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    slopes: tuple[torch.Tensor, ...] = ()
    for x, y in loader(device, steps=40):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        slope = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        slopes = (*slopes, slope)  # <- leak; fix: slopes = (*slopes[-1:], slope)
        if len(slopes) > 1:
            F.cosine_similarity(slopes[-1], slopes[-2], dim=0).item()
        optimizer.step()
