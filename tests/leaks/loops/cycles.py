"""Tensors in reference cycles: they stay until Python's garbage collector comes by, which knows nothing of their size."""

# ruff: noqa: RET504
from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import leaks

from .models import FLOAT_BYTES, loader, mlp, mlp_graph_bytes

BUFFER = 64 * 512 * FLOAT_BYTES


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


class Sample:
    def __init__(self, noise: torch.Tensor) -> None:
        self.noise = noise
        self.original = self  # <- leak of self_reference; fix: self.original = None


@leaks("cycle", holder="Sample", bytes_each=BUFFER)
def self_reference(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        sample = Sample(torch.randn(64, 512, device=device))
        train_on(model, optimizer, x + sample.noise[:32, :128], y)
        del sample


@leaks("cycle", holder=("error", "augment"), bytes_each=BUFFER + 8 * 128 * FLOAT_BYTES)
def kept_exception(device: str) -> None:
    """``error`` names the exception, whose traceback names the frame, whose variables ``error``, ``noise``, ``x`` are."""

    def augment(x: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(64, 512, device=device)
        error = None
        try:
            raise ValueError("no mask for this image")
        except ValueError as raised:
            error = raised  # <- leak; fix: error = str(raised)
        return x + noise[:8, :128] * (0.0 if error else 1.0)

    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=8):
        train_on(model, optimizer, augment(x), y)


@leaks("cycle", holder="halved", bytes_each=BUFFER)
def recursive_closure(device: str) -> None:
    """A function inside a function that calls itself holds itself, and all that it reads."""

    def smoothed(x: torch.Tensor) -> torch.Tensor:
        kernel = torch.randn(64, 512, device=device)

        def halved(depth: int) -> torch.Tensor:  # <- leak
            return halved(depth - 1) / 2 if depth else kernel[:32, :128]

        result = x + halved(3)
        # fix here: del halved
        return result

    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        train_on(model, optimizer, smoothed(x), y)


class Tree:
    """A node knows its children and its parent."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.children: list[Tree] = []
        self.parent: Tree | None = None

    def add(self, child: Tree) -> None:
        self.children.append(child)
        child.parent = self  # <- leak of parent_and_children; fix: (nothing)


@leaks("cycle", holder="Tree", bytes_each=2 * BUFFER)
def parent_and_children(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        root = Tree(torch.randn(64, 512, device=device))
        root.add(Tree(torch.randn(64, 512, device=device)))
        train_on(model, optimizer, x + root.values[:32, :128], y)
        del root


class Epoch:
    """What lives as long as one pass: a buffer of statistics, and a callback that wants to know its epoch."""

    def __init__(self, device: str) -> None:
        self.statistics = torch.zeros(64, 512, device=device)
        self.callback = Callback(self)  # <- leak of callback_that_knows_its_owner


class Callback:
    def __init__(self, epoch: Epoch) -> None:
        self.epoch: Any = epoch  # <- leak of callback_that_knows_its_owner; fix: self.epoch = None


@leaks("cycle", holder=("Epoch", "Callback"), bytes_each=BUFFER)
def callback_that_knows_its_owner(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(24):
        epoch = Epoch(device)
        for x, y in loader(device, steps=1):
            train_on(model, optimizer, x + epoch.statistics[:32, :128], y)
        del epoch


class Resampler:
    """Keeps its own method in a table: an object that holds itself."""

    def __init__(self, device: str) -> None:
        self.weights = torch.randn(64, 512, device=device)
        self.ways = {"plain": self.plain}  # <- leak of own_method_in_a_table; fix: self.ways = {"plain": 0}

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x


@leaks("cycle", holder="Resampler", bytes_each=BUFFER)
def own_method_in_a_table(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        resampler = Resampler(device)
        train_on(model, optimizer, x + resampler.weights[:32, :128], y)
        del resampler


class Encoder(nn.Module):
    def __init__(self, owner: Any) -> None:
        super().__init__()
        self.layers = mlp("cpu", hidden=512)
        self.owner = [owner]  # <- leak of models_of_a_search; fix: self.owner = []


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder.layers(x)


@leaks(
    "cycle", holder=("Classifier", "Encoder"), bytes_each=2 * (128 * 512 + 512 + 512 * 10 + 10) * FLOAT_BYTES, every=3
)
def models_of_a_search(device: str) -> None:
    """Each trial has a new model; the old one holds itself, with its weights and gradients."""
    for trial in range(8):
        model = Classifier().to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * (trial + 1))
        for x, y in loader(device, steps=3):
            train_on(model, optimizer, x, y)
        del model, optimizer


class Patch:
    """What is added to one batch, trained by an optimizer of its own."""

    def __init__(self, device: str) -> None:
        self.delta = torch.zeros(64, 512, device=device, requires_grad=True)
        self.decay = 0.9
        self.optimizer = torch.optim.SGD([self.delta], lr=0.1, momentum=0.9)
        decayed = lambda step: self.decay**step  # noqa: E731  # <- leak of patches_with_optimizers; fix: decayed = lambda step: 0.9**step
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, decayed)  # <- leak of patches_with_optimizers


@leaks("cycle", holder="Patch", bytes_each=3 * BUFFER, every=3)
def patches_with_optimizers(device: str) -> None:
    """Weights, gradients and momenta of optimizers that nobody can use any more."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        patch = Patch(device)
        for _ in range(2):
            patch.optimizer.zero_grad()
            (-F.cross_entropy(model(x + patch.delta[:32, :128]), y)).backward()
            patch.optimizer.step()
            patch.schedule.step()
        train_on(model, optimizer, x + patch.delta.detach()[:32, :128], y)
        del patch


class Step:
    """What one step computed, and the observers that get it."""

    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss
        self.observers: list[Any] = []


@leaks(
    "cycle",
    holder=("Step", "observers"),
    bytes_each=(mlp_graph_bytes(rows=128) + 128 * 10 * FLOAT_BYTES, FLOAT_BYTES),  # the graph's, and the loss
    also=("no_grad-missing step",),
)
def graph_in_a_cycle(device: str) -> None:
    """A loss that no backward walks lies in a cycle, and with it all its activations."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=128):
        train_on(model, optimizer, x, y)
        # fix over: with torch.no_grad():
        step = Step(model(x).abs().mean())
        step.observers.append(lambda step=step: step.loss)  # <- leak; fix: (nothing)
        del step


class Doubled(torch.autograd.Function):
    """Keeps its result as an attribute: result -> its node -> its context -> result."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x * 2
        ctx.result = result  # <- leak of output_of_a_context; fix: ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 2


@leaks("cycle", holder="Doubled", bytes_each=128 * 256 * FLOAT_BYTES, also=("overlap-unfreed loss",))
def output_of_a_context(device: str) -> None:
    model = nn.Linear(128, 256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, _ in loader(device, rows=128):
        loss = Doubled.apply(model(x)).mean()  # <- leak
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class StepContext:
    """What a step is reported with, one large and six small; and a function that refers back."""

    def __init__(self, device: str) -> None:
        self.features = torch.zeros(64, 256, device=device)
        self.scores = [torch.zeros(1024, device=device) for _ in range(6)]
        self.report = lambda: self.features  # <- leak of contexts_of_unequal_tensors; fix: self.report = None


@leaks(
    "cycle",
    holder="StepContext",
    bytes_each=(64 * 256 * FLOAT_BYTES, *6 * [1024 * FLOAT_BYTES]),
    advice="nothing but gc.collect()",
)
def contexts_of_unequal_tensors(device: str) -> None:
    """Of more tensors than are traced the largest alone would count for all. The collector is off, as some do for its pauses."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gc.disable()
    try:
        for x, y in loader(device):
            StepContext(device)
            train_on(model, optimizer, x, y)
    finally:
        gc.enable()
