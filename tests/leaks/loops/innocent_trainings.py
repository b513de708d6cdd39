"""Known kinds of training as they should be: much goes on between steps in them, and nothing leaks."""

from __future__ import annotations

import collections
import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent

from .models import FLOAT_BYTES, loader, mlp

WEIGHTS = (128 * 256 + 256 + 256 * 10 + 10) * FLOAT_BYTES


@innocent("a GAN: two optimizers, and graphs of one step that two backwards walk, the first cut off by detach")
def gan(device: str) -> None:
    generator, critic = mlp(device, outputs=128), mlp(device, outputs=1)
    g_optimizer = torch.optim.AdamW(generator.parameters())
    d_optimizer = torch.optim.AdamW(critic.parameters())
    for x, _ in loader(device, rows=64):
        fake = generator(torch.randn(64, 128, device=device))
        d_loss = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(x)).mean()
        d_optimizer.zero_grad()
        d_loss.backward()
        d_optimizer.step()
        g_loss = F.softplus(-critic(fake)).mean()
        g_optimizer.zero_grad()
        g_loss.backward()
        g_optimizer.step()


@innocent("PPO: a rollout is gathered without gradients, used for four epochs, and replaced")
def ppo(device: str) -> None:
    actor, critic = mlp(device, outputs=4), mlp(device, outputs=1)
    optimizer = torch.optim.AdamW([*actor.parameters(), *critic.parameters()])
    for _ in range(6):
        rollout = []
        with torch.no_grad():
            for _ in range(8):
                state = torch.randn(16, 128, device=device)
                odds = actor(state).log_softmax(1)
                action = odds.argmax(1, keepdim=True)
                rollout.append((state, action, odds.gather(1, action), critic(state)))
        states, actions, old_odds, values = (torch.cat(column) for column in zip(*rollout, strict=True))
        for _ in range(4):
            odds = actor(states).log_softmax(1).gather(1, actions)
            ratio = (odds - old_odds).exp()
            advantage = 1.0 - values
            gain = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
            loss = (critic(states) - 1.0).square().mean() - gain
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@innocent(
    "k-fold: each fold has a model of its own, and the old one goes; only numbers stay", settles_bytes=2 * WEIGHTS
)
def folds(device: str) -> list[float]:
    scores = []
    for fold in range(6):
        torch.manual_seed(fold)
        model = mlp(device)
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in loader(device, steps=5):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scores.append(loss.item())
    return scores


@innocent("distillation: the teacher answers each batch, under no_grad")
def distillation(device: str) -> None:
    teacher, student = mlp(device, hidden=512).eval(), mlp(device, hidden=64)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for x, y in loader(device, rows=64):
        with torch.no_grad():
            target = teacher(x).softmax(1)
        logits = student(x)
        loss = F.cross_entropy(logits, y) + F.kl_div(logits.log_softmax(1), target, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("an average of the weights beside the model, updated in place, and a new dict of it in each step")
def averaged_weights(device: str) -> Any:
    model = mlp(device)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters())
    shadow = {name: value.clone() for name, value in model.state_dict().items()}
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.01)
        shadow = {name: 0.99 * shadow[name] + 0.01 * value for name, value in model.state_dict().items()}
    return shadow


@innocent("MoCo: a queue of keys of constant size, a momentum encoder under no_grad")
def queue_of_keys(device: str) -> None:
    query_net = mlp(device, outputs=64)
    key_net = copy.deepcopy(query_net).requires_grad_(False)
    optimizer = torch.optim.SGD(query_net.parameters(), lr=0.01)
    queue, place = torch.randn(512, 64, device=device), 0
    for x, _ in loader(device, steps=30):
        with torch.no_grad():
            for key, query in zip(key_net.parameters(), query_net.parameters(), strict=True):
                key.mul_(0.99).add_(query, alpha=0.01)
            keys = key_net(x)
        logits = query_net(x) @ torch.cat([keys, queue]).T
        loss = F.cross_entropy(logits[:, :64], torch.arange(32, device=device))
        del logits
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue[place : place + 32] = keys
        place = (place + 32) % 512


@innocent("three forwards of one net in a step, whose embeddings live into the next: 3 x 16 KB")
def triplets(device: str) -> None:
    net = mlp(device, outputs=64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for x, _ in loader(device, rows=64):
        anchor, positive, negative = net(x), net(x + 0.1), net(x.flip(0))
        loss = F.triplet_margin_loss(anchor, positive, negative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent(
    "DQN: a target network copied now and then, a replay memory with a bound, still filling", settles_bytes=1_500_000
)
def deep_q(device: str) -> None:
    net = mlp(device, outputs=4)
    target = copy.deepcopy(net).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters())
    memory: collections.deque[Any] = collections.deque(maxlen=5000)
    for step in range(30):
        memory.append((torch.randn(32, 128, device=device), torch.randn(32, 128, device=device)))
        state, next_state = memory[step // 2]
        loss = (net(state).amax(1) - target(next_state).amax(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            target = copy.deepcopy(net).requires_grad_(False)


@innocent("SWA: a second set of weights, filled in the last third of the training", settles_bytes=WEIGHTS)
def weight_averaging(device: str) -> None:
    model = mlp(device)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.swa_utils.SWALR(optimizer, swa_lr=0.05)
    for step, (x, y) in enumerate(loader(device, steps=30)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step >= 20:
            averaged.update_parameters(model)
            schedule.step()


@innocent("actor and critic, the critic's loss walked through the actor's features with retain_graph, all in one step")
def actor_and_critic(device: str) -> None:
    body, actor, critic = mlp(device, outputs=64), nn.Linear(64, 4).to(device), nn.Linear(64, 1).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *actor.parameters(), *critic.parameters()], lr=0.01)
    for x, y in loader(device, rows=64):
        features = body(x)
        value_loss = critic(features).square().mean()
        policy_loss = F.cross_entropy(actor(features), y % 4)
        optimizer.zero_grad()
        value_loss.backward(retain_graph=True)
        policy_loss.backward()
        optimizer.step()
        del features, value_loss, policy_loss


@innocent("a training with a validation after each epoch, and a test at the end, all under no_grad")
def epochs_with_validation(device: str) -> list[float]:
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
    scores = []

    @torch.no_grad()
    def validate() -> float:
        correct = torch.zeros((), device=device)
        for x, y in loader(device, steps=4, rows=256):
            out = model(x)
            correct += (out.argmax(1) == y).sum()
        return float(correct)

    for _ in range(4):
        for x, y in loader(device, steps=6):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        schedule.step()
        scores.append(validate())
    return scores


@innocent("a large batch stays bound through the next load: a batch is no result")
def large_batches(device: str) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)
    ).to(device)
    model(torch.zeros(2, 3, 32, 32, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        images = torch.randn(64, 3, 32, 32, device=device)
        labels = torch.randint(0, 10, (64,), device=device)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class LooksBack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.layer(x)
        self.last = out.detach()
        return out


@innocent("a curriculum: each batch is longer, and so is the result that is kept of it", settles_bytes=1 << 20)
def last_result_of_longer_batches(device: str) -> None:
    model = LooksBack().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(80):
        loss = model(torch.randn(32 + 32 * step, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("the same, and a variable has the longest so far", settles_bytes=1 << 20)
def longest_of_longer_batches(device: str) -> None:
    model = nn.Linear(64, 64).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    longest: torch.Tensor | None = None
    for step in range(80):
        out = model(torch.randn(32 + 32 * step, 64, device=device))
        if longest is None or out.numel() > longest.numel():
            longest = out.detach()
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
