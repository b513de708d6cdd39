"""Graphs within a step that no backward walks, and some that look so: nobody holds them when the next step begins."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent, leaks

from .models import FLOAT_BYTES, LanguageModel, language_loss, loader, mlp

WIDE = 1024
LAYERS = 4


def deep(device: str, inputs: int = 128, outputs: int = 8) -> nn.Sequential:
    """Each layer's result is saved for the next one's backward; of ReLU in and out are one."""
    hidden = [layer for _ in range(LAYERS - 1) for layer in (nn.Linear(WIDE, WIDE), nn.ReLU())]
    return nn.Sequential(nn.Linear(inputs, WIDE), nn.ReLU(), *hidden, nn.Linear(WIDE, outputs)).to(device)


def deep_graph_bytes(rows: int) -> int:
    """What ``deep(x)`` saves beside its batch."""
    return LAYERS * rows * WIDE * FLOAT_BYTES


class Player:
    def __init__(self, device: str) -> None:
        self.policy = deep(device)
        self.target = copy.deepcopy(self.policy)
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=1e-4)

    def learn(self, states: torch.Tensor, actions: torch.Tensor, rewards: torch.Tensor) -> None:
        values = self.policy(states).gather(1, actions[:, None]).squeeze(1)
        # fix over: with torch.no_grad():
        best = self.target(states).max(1).values  # <- leak of target_network
        loss = F.smooth_l1_loss(values, rewards + 0.99 * best.detach())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@leaks("no_grad-missing", holder="best", held_bytes=deep_graph_bytes(rows=64), advice="no_grad")
def target_network(device: str) -> None:
    """What the target gives is detached, but its graph lives until the function returns."""
    player = Player(device)
    for _ in range(24):
        states, actions = torch.randn(64, 128, device=device), torch.zeros(64, dtype=torch.long, device=device)
        player.learn(states, actions, torch.rand(64, device=device))


class Ensemble(Player):
    def learn_of(self, views: list[torch.Tensor]) -> None:
        # fix over: with torch.no_grad():
        scores = torch.stack([self.target(view) for view in views])  # <- leak of target_of_three_views
        loss = F.mse_loss(self.policy(views[0]), scores.detach().mean(0))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


@leaks("no_grad-missing", holder="scores", held_bytes=3 * deep_graph_bytes(rows=64), advice="no_grad")
def target_of_three_views(device: str) -> None:
    """Three graphs from one line, with no backward between, as an evaluation makes them; but they are alive at the backward."""
    player = Ensemble(device)
    for _ in range(24):
        player.learn_of([torch.randn(64, 128, device=device) for _ in range(3)])


def score(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    # fix over: with torch.set_grad_enabled(model.training):
    logits = model(ids)  # <- leak of reference_of_preferences
    return -language_loss(logits, ids)


@leaks("no_grad-missing", holder="logits", advice="no_grad")
def reference_of_preferences(device: str) -> None:
    """A frozen reference, in evaluation mode; its parameters ask for gradients all the same. Policy and reference, one line."""
    policy = LanguageModel(vocabulary=512, layers=3).to(device)
    reference = copy.deepcopy(policy).eval()
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-4)

    def step(ids: torch.Tensor) -> None:
        gain = score(policy, ids)
        before = score(reference, ids)
        loss = -F.logsigmoid(gain - before.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(24):
        step(torch.randint(0, 512, (16, 32), device=device))


@leaks("no_grad-missing", holder="pseudo", held_bytes=deep_graph_bytes(rows=256), advice="no_grad")
def pseudo_labels(device: str) -> None:
    """The graph goes at once; until then it has saved what nobody needs, of more rows than are trained on."""
    teacher, student = deep(device, outputs=10), mlp(device)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    for x, y in loader(device, rows=32):
        # fix over: with torch.no_grad():
        pseudo = teacher(x.repeat(8, 1)).argmax(1)[:32]  # <- leak
        optimizer.zero_grad()
        F.cross_entropy(student(x), (pseudo + y) % 10).backward()
        optimizer.step()


@innocent("for the critic the fakes are detached; their graph is walked after that, for the generator")
def fakes_for_both(device: str) -> None:
    generator, critic = deep(device, inputs=32, outputs=64), deep(device, inputs=64, outputs=1)
    of_generator = torch.optim.SGD(generator.parameters(), lr=1e-3)
    of_critic = torch.optim.SGD(critic.parameters(), lr=1e-3)

    def step() -> None:
        fakes = generator(torch.randn(64, 32, device=device))
        of_critic.zero_grad()
        (critic(fakes.detach()).mean() - critic(torch.randn(64, 64, device=device)).mean()).backward()
        of_critic.step()
        of_generator.zero_grad()
        (-critic(fakes).mean()).backward()
        of_generator.step()

    for _ in range(40):
        step()


@innocent("what the network gives goes at once: a hook has taken an inner layer's result, which is walked")
def features_by_a_hook(device: str) -> None:
    model = deep(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    taken: dict[str, torch.Tensor] = {}
    model[3].register_forward_hook(lambda module, args, output: taken.update(features=output))

    def step(x: torch.Tensor) -> None:
        model(x)
        optimizer.zero_grad()
        taken.pop("features").square().mean().backward()
        optimizer.step()

    for x, _ in loader(device, steps=40):
        step(x)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = deep("cpu"), deep("cpu", outputs=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.actor(x), self.critic(x)


@innocent("of the two results of the network the second is walked, and the first is not")
def second_head_alone(device: str) -> None:
    model = TwoHeads().to(device)
    optimizer = torch.optim.SGD(model.critic.parameters(), lr=1e-3)

    def step(x: torch.Tensor) -> None:
        values = model(x)[1]
        optimizer.zero_grad()
        values.square().mean().backward()
        optimizer.step()

    for x, _ in loader(device, steps=40):
        step(x)


@innocent("in the first epochs the second view is not in the loss yet, later it is: then it is no finding any more")
def consistency_after_a_while(device: str) -> None:
    model = deep(device, outputs=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        other = model(x + 0.1)
        if number >= 20:
            loss = loss + other.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for number, (x, y) in enumerate(loader(device, steps=50)):
        step(number, x, y)


@innocent("the gradients of each sample by torch.func: what walks there is PyTorch's own")
def gradients_of_each_sample(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    parameters = {name: one.detach() for name, one in model.named_parameters()}

    def loss_of(parameters: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.func.functional_call(model, parameters, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    for x, y in loader(device, steps=40):
        for name, gradient in each(parameters, x, y).items():
            model.get_parameter(name).grad = gradient.mean(0)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@innocent("some losses are left out and their graphs dropped; most are walked")
def batches_left_out(device: str) -> None:
    model = deep(device, outputs=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(number: int, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(model(x), y)
        if number % 3 == 2:
            return
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for number, (x, y) in enumerate(loader(device, steps=60)):
        step(number, x, y)
