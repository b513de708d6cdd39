"""Loops whose optimizers are the point: they take turns, are walked through themselves, or keep what they were given."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent, leaks

from .models import FLOAT_BYTES, loader, mlp


class ImagePool:
    """Of a CycleGAN: fakes of earlier steps, in lots of eight, for its critic."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.images: list[torch.Tensor] = []

    def query(self, fakes: torch.Tensor) -> torch.Tensor:
        chosen = []
        for fake in fakes.detach().split(8):
            kept = fake.clone()
            if len(self.images) < self.size:
                self.images.append(kept)  # <- leak of gan_with_endless_pool
                chosen.append(kept)
            else:
                at = random.randrange(self.size)
                chosen.append(self.images[at])
                self.images[at] = kept
        return torch.cat(chosen)


def gan(device: str, pool: ImagePool) -> None:
    random.seed(0)
    maker, critic = mlp(device, inputs=32, outputs=512), mlp(device, inputs=512, outputs=1)
    of_maker, of_critic = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
    for _ in range(40):
        fake = maker(torch.randn(32, 32, device=device))
        of_maker.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        of_maker.step()
        of_critic.zero_grad()
        real = torch.randn(32, 512, device=device)
        (F.softplus(-critic(real)).mean() + F.softplus(critic(pool.query(fake))).mean()).backward()
        of_critic.step()
        del fake, real


@leaks("tensor-growth", holder="images", bytes_each=(8 * 512 * FLOAT_BYTES,) * 4, every=2)
def gan_with_endless_pool(device: str) -> None:
    """The code has a bound, which is never reached."""
    gan(device, ImagePool(1_000_000))  # fix here: gan(device, ImagePool(4))


@innocent("a pool of 24 lots; from then on one goes for each that comes", settles_bytes=24 * 8 * 512 * FLOAT_BYTES)
def gan_with_pool(device: str) -> None:
    gan(device, ImagePool(24))


@leaks("overlap", holder="slopes", held_bytes=(128 * 256 + 256 + 256 * 10 + 10) * FLOAT_BYTES)
def inner_gradients_of_maml(device: str) -> None:
    """They have a graph, as the outer backward goes through them; the last task's lie beside the next step's first forward."""
    model = mlp(device)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(24):
        total = torch.zeros((), device=device)
        for _ in range(2):
            fast = dict(model.named_parameters())
            x, y = torch.randn(16, 128, device=device), torch.zeros(16, dtype=torch.long, device=device)
            inner = F.cross_entropy(torch.func.functional_call(model, fast, x), y)
            slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)  # <- leak
            fast = {name: old - 0.1 * slope for (name, old), slope in zip(fast.items(), slopes, strict=True)}
            total = total + F.cross_entropy(torch.func.functional_call(model, fast, x), y)
        # fix here: del slopes, inner
        optimizer.zero_grad()
        total.backward()
        optimizer.step()


@leaks("growing", holder="losses", bytes_each=4, nodes=True)
def losses_of_maml(device: str) -> None:
    """Graphs of earlier steps are alive; those of the adapted weights, whose numbers are another thread's, are not among them."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    losses: list[torch.Tensor] = []

    def adapt(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        weights = dict(model.named_parameters())
        inner = F.cross_entropy(torch.func.functional_call(model, weights, x), y)
        slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        return {name: old - 0.1 * slope for (name, old), slope in zip(weights.items(), slopes, strict=True)}

    for _ in range(60):
        x, y = torch.randn(16, 64, device=device), torch.zeros(16, dtype=torch.long, device=device)
        fast = adapt(x, y)
        loss = F.cross_entropy(torch.func.functional_call(model, fast, x), y)
        losses.append(loss)  # <- leak; fix: losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        del loss, x, y


class Mixing(torch.optim.SGD):
    """Anderson mixing as somebody began it: past gradients of the first parameter lie in its state."""

    def step(self, closure: Any = None) -> Any:
        first = self.param_groups[0]["params"][0]
        # fix here: self.state[first].pop("history", None)
        self.state[first].setdefault("history", []).append(first.grad.clone())  # <- leak of history_in_a_state
        return super().step(closure)


@leaks("tensor-growth", holder="state", bytes_each=128 * 256 * FLOAT_BYTES, every=2)
def history_in_a_state(device: str) -> None:
    """(One step of it is two to those who count them by the hooks of ``torch.optim``: its own, and SGD's.)"""
    model = mlp(device)
    optimizer = Mixing(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


@leaks("idle-optimizer", holder="trial", advice="delete trial")
def optimizer_of_a_trial(device: str) -> None:
    """A few steps find out whether Adam would do, and SGD trains. Adam's moments stay, and nothing uses them."""
    model, batches = mlp(device), loader(device)
    trial = torch.optim.Adam(model.parameters())  # <- leak
    optimizer = trial
    for epoch in range(10):
        for step, (x, y) in enumerate(batches):
            if epoch == 0 and step == 10:
                optimizer = sgd(model)  # fix here: trial = optimizer = sgd(model)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
