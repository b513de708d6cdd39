"""Known kinds of training with the mistakes that are known of them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F
from truth import leaks

from .models import FLOAT_BYTES, loader, mlp, mlp_graph_bytes

WEIGHTS = (128 * 256 + 256 + 256 * 10 + 10) * FLOAT_BYTES


@leaks("growing", holder="fold_losses", bytes_each=2 * WEIGHTS, every=4, nodes=True)
def folds_that_keep_a_loss(device: str) -> list[Any]:
    """The last loss of each fold keeps the fold's model, by the graph's own references to its parameters."""
    fold_losses = []
    for fold in range(6):
        torch.manual_seed(fold)
        model = mlp(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loss: Any = None
        for x, y in loader(device, steps=4):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        fold_losses.append(loss)  # <- leak; fix: fold_losses.append(loss.item())
    return fold_losses


@leaks(("growing", "growing-eval"), holder="values", bytes_each=mlp_graph_bytes() + 32 * FLOAT_BYTES)
def rollouts_with_graph(device: str) -> int:
    """PPO whose rollout computes the values with gradients on, and never empties its memory."""
    actor, critic = mlp(device, outputs=4), mlp(device, outputs=1)
    optimizer = torch.optim.AdamW([*actor.parameters(), *critic.parameters()])
    values = []
    for _ in range(24):
        state = torch.randn(32, 128, device=device)
        values.append(critic(state))  # <- leak; fix: values.append(critic(state).detach().mean())
        with torch.no_grad():
            action = actor(state).argmax(1)
        advantage = torch.randn(32, device=device)
        loss = F.cross_entropy(actor(state), action) * advantage.mean() + critic(state).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(values)


@leaks("growing", holder="log_probabilities", bytes_each=32 * FLOAT_BYTES, nodes=True)
def reinforce_with_old_episodes(device: str) -> None:
    """REINFORCE: an episode's log-probabilities are used, and not removed after the update."""
    policy = mlp(device, outputs=4)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    log_probabilities: list[torch.Tensor] = []
    for _ in range(24):
        state = torch.randn(32, 128, device=device)
        action = torch.zeros(32, 1, dtype=torch.long, device=device)
        log_probabilities.append(policy(state).log_softmax(1).gather(1, action).squeeze(1))  # <- leak
        loss = -log_probabilities[-1].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # fix here: log_probabilities.clear()


@leaks("growing", holder="baseline", bytes_each=0, nodes=True)
def baseline_with_graph(device: str) -> Any:
    """A moving baseline of the reward model's answers."""
    policy, reward = mlp(device, outputs=4), mlp(device, outputs=1)
    optimizer = torch.optim.SGD([*policy.parameters(), *reward.parameters()], lr=0.01)
    baseline: Any = 0.0
    for x, y in loader(device):
        gain = reward(x).mean()
        loss = F.cross_entropy(policy(x), y % 4) + gain.square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        baseline = 0.95 * baseline + 0.05 * gain  # <- leak; fix: baseline = 0.95 * baseline + 0.05 * gain.item()
    return baseline


@leaks(
    "growing", holder="penalties", bytes_each=(16 * 128 * FLOAT_BYTES, 16 * 128 * FLOAT_BYTES, FLOAT_BYTES), nodes=True
)
def penalties_of_a_critic(device: str) -> list[Any]:
    """WGAN-GP: the penalty's graph ends in the points where the slope was taken, and their gradients."""
    critic = mlp(device, outputs=1)
    optimizer = torch.optim.SGD(critic.parameters(), lr=0.01)
    penalties = []
    for _ in range(24):
        mixed = torch.randn(16, 128, device=device, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        penalty = (slope.norm(dim=1) - 1).square().mean()
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        penalties.append(penalty)  # <- leak; fix: penalties.append(penalty.item())
    return penalties


@leaks("growing", holder="mean_length", nodes=True, advice=".item()")
def average_of_a_lazy_penalty(device: str) -> None:
    """Path lengths as StyleGAN2 has them, every other step; the penalty takes the average detached, so no backward walks it."""
    generator = mlp(device, inputs=16, hidden=32, outputs=48)
    optimizer = torch.optim.SGD(generator.parameters(), lr=0.01)
    mean_length: Any = 0.0
    for step in range(40):
        z = torch.randn(8, 16, device=device, requires_grad=True)
        images = generator(z)
        loss = images.square().mean()
        if step % 2 == 0:
            (slope,) = torch.autograd.grad((images * torch.randn_like(images)).sum(), z, create_graph=True)
            lengths = slope.square().sum(1).sqrt()
            mean = lengths.mean()  # fix here: mean = lengths.mean().item()
            mean_length = mean_length + 0.01 * (mean - mean_length)  # <- leak
            loss = loss + (lengths - torch.as_tensor(mean_length).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("growing", holder="soft_targets", bytes_each=mlp_graph_bytes(rows=64) + 64 * 4 * FLOAT_BYTES)
def teacher_with_graph(device: str) -> int:
    """Distillation: the teacher was put into eval(), no more, and its answers are kept for the next epoch."""
    teacher, student = mlp(device, outputs=4).eval(), mlp(device, outputs=4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    soft_targets: dict[int, torch.Tensor] = {}
    for index, (x, _) in enumerate(loader(device, rows=64)):
        # fix over: with torch.no_grad():
        soft_targets[index] = teacher(x)  # <- leak
        target = soft_targets[index].detach()
        loss = F.l1_loss(student(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(soft_targets)
