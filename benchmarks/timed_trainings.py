"""Trainings whose steps are timed. Each function builds one on a device and returns its step."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


def mlp(device: str) -> Callable[[], None]:
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.zeros(32, 64, device=device)
    targets = torch.zeros(32, dtype=torch.long, device=device)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()

    step.model = model  # type: ignore[attr-defined]
    return step


def layers(device: str) -> Callable[[], None]:
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(20))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.zeros(64, 256, device=device)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    step.model = model  # type: ignore[attr-defined]
    return step


def gpt2(device: str) -> Callable[[], None]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    had_agent = "vramscope" in sys.modules
    if not had_agent:  # the example imports it, which a process without it must not do
        sys.modules["vramscope"] = types.ModuleType("vramscope")
        sys.modules["vramscope"].agent = None  # type: ignore[attr-defined]
    from gpt2 import GPT2, Shape

    if not had_agent:
        del sys.modules["vramscope"]
    model = GPT2(Shape()).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(8, 1024, dtype=torch.long, device=device)

    def step() -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step.model = model  # type: ignore[attr-defined]
    return step


def gan(device: str) -> Callable[[], None]:
    """Return a step of a small DCGAN: one step of the discriminator, one of the generator."""
    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 64, 4, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.ConvTranspose2d(64, 32, 4, 2, 1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    ).to(device)
    discriminator = nn.Sequential(
        nn.Conv2d(3, 32, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(32, 64, 4, 2, 1, bias=False),
        nn.BatchNorm2d(64),
        nn.LeakyReLU(0.2),
        nn.Conv2d(64, 1, 4, bias=False),
        nn.Flatten(),
    ).to(device)
    of_generator = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
    of_discriminator = torch.optim.Adam(discriminator.parameters(), 2e-4, betas=(0.5, 0.999))
    loss = nn.BCEWithLogitsLoss()
    images = torch.zeros(64, 3, 16, 16, device=device)
    true, false = torch.ones(64, 1, device=device), torch.zeros(64, 1, device=device)

    def step() -> None:
        discriminator.zero_grad()
        loss(discriminator(images), true).backward()
        made = generator(torch.randn(64, 64, 1, 1, device=device))
        loss(discriminator(made.detach()), false).backward()
        of_discriminator.step()
        generator.zero_grad()
        loss(discriminator(made), true).backward()
        of_generator.step()

    step.model = generator  # type: ignore[attr-defined]
    return step


def ppo(device: str) -> Callable[[], None]:
    """Return a step of PPO: 8 forward passes of the policy in 8 environments, then one minibatch."""
    actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)).to(device)
    critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
    parameters = [*actor.parameters(), *critic.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4, eps=1e-5)
    seen, batch = torch.zeros(8, 8, device=device), torch.zeros(256, 8, device=device)
    actions = torch.zeros(256, dtype=torch.long, device=device)
    before, advantages = torch.zeros(256, device=device), torch.zeros(256, device=device)

    def step() -> None:
        with torch.no_grad():
            for _ in range(8):
                critic(seen)
                torch.log_softmax(actor(seen), 1)
        logs = torch.log_softmax(actor(batch), 1)
        ratio = (logs.gather(1, actions[:, None])[:, 0] - before).exp()
        gain = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        entropy = -(logs.exp() * logs).sum(1).mean()
        loss = 0.5 * (critic(batch)[:, 0] - advantages).square().mean() - gain - 0.01 * entropy
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()

    step.model = actor  # type: ignore[attr-defined]
    return step
