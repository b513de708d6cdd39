"""Plain tensors, without any graph, more from step to step."""

from __future__ import annotations

import copy
import functools
import itertools
import queue
import weakref
from collections.abc import Generator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from truth import leaks

from .library import ProgressLog
from .models import FLOAT_BYTES, INDEX_BYTES, Block, loader, mlp

WEIGHTS = (128 * 256 + 256 + 256 * 10 + 10) * FLOAT_BYTES
"""Bytes of all parameters of ``mlp``."""


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@leaks("tensor-growth", holder="features", bytes_each=48 * 256 * FLOAT_BYTES)
def detached_features(device: str) -> list[torch.Tensor]:
    """detach() was remembered; the tensors stay on the device all the same."""
    body, head = nn.Linear(128, 256).to(device), nn.Linear(256, 10).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    features = []
    for x, y in loader(device, rows=48):
        feature = body(x)
        loss = F.cross_entropy(head(feature), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        features.append(feature.detach())  # <- leak; fix: features.append(feature.detach().mean(0))
    return features


@leaks(
    "tensor-growth", holder="forever", bytes_each=(32 * 128 * FLOAT_BYTES, 32 * INDEX_BYTES), advice="itertools.cycle"
)
def batches_of_a_cycle(device: str) -> None:
    """Each batch is new, and itertools.cycle keeps it for a second round, which never comes."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def batches() -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        while True:
            yield torch.randn(32, 128, device=device), torch.randint(0, 10, (32,), device=device)

    forever = itertools.cycle(batches())  # <- leak; fix: forever = batches()
    for _ in range(24):
        x, y = next(forever)
        train_on(model, optimizer, x, y)


class Sample:
    def __init__(self, number: int) -> None:
        self.number = number


@leaks("tensor-growth", holder="features_of", bytes_each=32 * 256 * FLOAT_BYTES, advice="keys")
def features_by_weak_keys(device: str) -> int:
    """Features are to go with their sample; the samples are all kept for a report."""
    backbone = mlp(device, outputs=256).requires_grad_(False)
    head = nn.Linear(256, 10).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    features_of: weakref.WeakKeyDictionary[Sample, torch.Tensor] = weakref.WeakKeyDictionary()
    seen = []
    for number, (x, y) in enumerate(loader(device)):
        sample = Sample(number)
        seen.append(sample)  # fix here: seen.append(number)
        features_of[sample] = backbone(x)  # <- leak
        train_on(head, optimizer, features_of[sample], y)
    return len(seen)


CACHE: dict[int, torch.Tensor] = {}


@leaks("tensor-growth", holder="CACHE", bytes_each=64 * 256 * FLOAT_BYTES)
def global_cache(device: str) -> None:
    """Features of a frozen backbone by index, on the device."""
    CACHE.clear()
    backbone = mlp(device, outputs=256).requires_grad_(False)
    head = nn.Linear(256, 10).to(device)
    optimizer = torch.optim.AdamW(head.parameters())
    for index, (x, y) in enumerate(loader(device, rows=64)):
        with torch.no_grad():
            features = backbone(x)
        CACHE[index] = features  # <- leak; fix: (nothing)
        train_on(head, optimizer, features, y)


class Transition(NamedTuple):
    state: torch.Tensor
    reward: torch.Tensor
    next_state: torch.Tensor


@leaks("tensor-growth", holder="replay", bytes_each=2 * 32 * 128 * FLOAT_BYTES + 2 * 32 * FLOAT_BYTES)
def replay_without_a_bound(device: str) -> int:
    model = mlp(device, outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replay = []
    for _ in range(30):
        state, next_state = torch.randn(32, 128, device=device), torch.randn(32, 128, device=device)
        transition = Transition(state, torch.zeros(64, device=device), next_state)
        replay.append(transition)  # <- leak; fix: replay[:] = [transition]
        past = replay[0]
        loss = (model(past.state) - model(past.next_state)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(replay)


@leaks("tensor-growth", holder="gradients", bytes_each=WEIGHTS)
def history_of_gradients(device: str) -> list[Any]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    gradients = []
    for x, y in loader(device):
        train_on(model, optimizer, x, y)
        now = [p.grad.clone() for p in model.parameters()]
        # fix here: now = [float(gradient.norm()) for gradient in now]
        gradients.append(now)  # <- leak
    return gradients


@functools.cache
def positions(x: torch.Tensor) -> torch.Tensor:  # <- leak of cached_function
    """Cached by the tensor, which is another one each time: nothing is ever found, everything is kept."""
    return torch.cumsum(x, dim=1)


@leaks("tensor-growth", holder="positions", bytes_each=2 * 64 * 128 * FLOAT_BYTES, advice="positions.cache_clear()")
def cached_function(device: str) -> None:
    positions.cache_clear()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=64):
        encoded = positions(x)  # <- leak; fix: encoded = positions.__wrapped__(x)
        train_on(model, optimizer, encoded, y)


@leaks("tensor-growth", holder="snapshots", bytes_each=WEIGHTS)
def weights_of_every_step(device: str) -> list[Any]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    snapshots = []
    for x, y in loader(device):
        train_on(model, optimizer, x, y)
        # fix here: snapshots.clear()
        snapshots.append(copy.deepcopy(model.state_dict()))  # <- leak
    return snapshots


@leaks("tensor-growth", holder="earlier", bytes_each=128 * 256 * FLOAT_BYTES)
def weights_as_parameters(device: str) -> list[nn.Parameter]:
    """They are parameters too, and no module's."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    earlier = []
    for x, y in loader(device):
        train_on(model, optimizer, x, y)
        # fix here: earlier.clear()
        earlier.append(copy.deepcopy(model[0].weight))  # <- leak
    return earlier


@leaks("tensor-growth", holder="maps", bytes_each=4 * 2 * 64 * 64 * FLOAT_BYTES)
def attention_maps_of_a_hook(device: str) -> int:
    layer = Block(width=16, heads=2).to(device)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    maps: list[torch.Tensor] = []

    def collect(module: nn.Module, inputs: Any, outputs: Any) -> None:
        maps.append(outputs[1].detach())  # <- leak; fix: maps[:] = [outputs[1].detach().mean()]

    layer.register_forward_hook(collect)
    for _ in range(24):
        loss = layer(torch.randn(4, 64, 16, device=device))[0].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(maps)


@leaks("tensor-growth", holder="pending", bytes_each=128 * 256 * FLOAT_BYTES)
def log_of_histograms(device: str) -> None:
    """A logger that draws its histograms later, from weights that it keeps till then. It could flush soon: that is waited for."""
    log = ProgressLog(flush_every=1000)
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader(device, steps=36)):
        train_on(model, optimizer, x, y)
        log.add_histogram("first layer", model[0].weight.detach().clone(), step)


def windows() -> Generator[int, torch.Tensor, None]:
    """Remembers all that it was sent, though it needs only the last two."""
    past: list[torch.Tensor] = []
    while True:
        batch = yield len(past)
        past.append(batch)  # <- leak of generator_of_windows; fix: past[:] = [*past[-1:], batch]


@leaks("tensor-growth", holder="past", bytes_each=64 * 128 * FLOAT_BYTES)
def generator_of_windows(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    window = windows()
    next(window)
    for x, y in loader(device, rows=64):
        window.send(x)
        train_on(model, optimizer, x, y)


@leaks("tensor-growth", holder=("unread", "queue"), bytes_each=64 * 128 * FLOAT_BYTES)
def queue_that_nobody_reads(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    unread: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()
    for x, y in loader(device, rows=64):
        train_on(model, optimizer, x, y)
        unread.put(x)  # <- leak; fix: (nothing)
    assert unread is not None


@leaks("tensor-growth", holder="bank", bytes_each=64 * 256 * FLOAT_BYTES)
def one_tensor_that_grows(device: str) -> torch.Tensor:
    """Always one tensor, longer from step to step."""
    model = mlp(device, outputs=256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bank = torch.zeros(0, 256, device=device)
    for x, _ in loader(device, rows=64):
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bank = torch.cat([bank, out.detach()])  # <- leak; fix: bank = torch.cat([bank, out.detach()])[-64:]
        del out
    return bank


class Memory(nn.Module):
    """A memory of all inputs, registered as a buffer so that it is saved with the model."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.layers = mlp(device)
        self.register_buffer("memory", torch.zeros(0, 128, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = torch.cat([self.memory, x])  # fix here: memory = torch.cat([self.memory, x])[-64:]
        self.memory = memory  # <- leak of buffer_that_grows
        return self.layers(x)


@leaks("tensor-growth", holder="memory", bytes_each=64 * 128 * FLOAT_BYTES)
def buffer_that_grows(device: str) -> None:
    model = Memory(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=64):
        train_on(model, optimizer, x, y)


@leaks("tensor-growth", holder="embedded", bytes_each=64 * (128 + 256) * FLOAT_BYTES)
def cache_keyed_by_tensors(device: str) -> int:
    """Tensors hash by identity: each batch is a key of its own."""
    backbone = nn.Linear(128, 256).to(device).requires_grad_(False)
    head = nn.Linear(256, 10).to(device)
    optimizer = torch.optim.SGD(head.parameters(), lr=0.01)
    embedded: dict[torch.Tensor, torch.Tensor] = {}
    for x, y in loader(device, rows=64):
        if x not in embedded:
            # fix here: embedded.clear()
            embedded[x] = backbone(x)  # <- leak
        train_on(head, optimizer, embedded[x], y)
    return len(embedded)


class Image:
    known: list[Image] = []  # noqa: RUF012  (shared by all: that is the loop's fault)

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels = pixels
        Image.known.append(self)  # <- leak of registry_of_a_class; fix: (nothing)


@leaks("tensor-growth", holder="known", bytes_each=64 * 128 * FLOAT_BYTES)
def registry_of_a_class(device: str) -> None:
    """The class knows all its objects, so none of them goes."""
    Image.known.clear()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=64):
        train_on(model, optimizer, Image(x).pixels, y)


@leaks("tensor-growth", holder="validation_outputs", bytes_each=4 * 64 * 128 * FLOAT_BYTES, every=4)
def outputs_of_all_validations(device: str) -> int:
    """no_grad is there; what an epoch predicted is never thrown away."""
    model = mlp(device, outputs=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    validation_outputs = []
    for _ in range(8):
        for x, _ in loader(device, steps=4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            for x, _ in loader(device, steps=4, rows=64):
                validation_outputs.append(model(x))  # <- leak
        score = torch.cat(validation_outputs).mean().item()
        assert score is not None
        # fix here: validation_outputs.clear()
    return len(validation_outputs)


@leaks("tensor-growth", holder="losses", bytes_each=64 * 256 * FLOAT_BYTES)
def scalars_with_large_storage(device: str) -> list[torch.Tensor]:
    """detach() is there, and each is one number; but mse_loss leaves its result in the storage of all the squares."""
    model = mlp(device, outputs=256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x, _ in loader(device, rows=64):
        loss = F.mse_loss(model(x), torch.zeros(64, 256, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())  # <- leak; fix: losses.append(loss.item())
        del loss
    return losses


class Consolidated(nn.Module):
    """Elastic weights: after each task a mean of every weight, in a buffer of that task's name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.tasks = model, 0

    def consolidate(self) -> None:
        for name, parameter in self.model.named_parameters():
            name = f"{name.replace('.', '_')}_{self.tasks}"
            # fix here: name = "mean"
            self.register_buffer(name, parameter.detach().clone())  # <- leak of means_of_tasks
        self.tasks += 1


@leaks("tensor-growth", holder="weights", bytes_each=128 * 256 * FLOAT_BYTES, every=2)
def means_of_tasks(device: str) -> None:
    """Small ones count as the model's own."""
    weights = Consolidated(mlp(device)).to(device)
    optimizer = torch.optim.SGD(weights.parameters(), lr=0.01)
    for step, (x, y) in enumerate(loader(device, steps=32)):
        loss = F.cross_entropy(weights.model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 2:
            weights.consolidate()


@leaks("tensor-growth", holder="results", bytes_each=4 * 256 * 256 * FLOAT_BYTES, every=30)
def features_of_each_evaluation(device: str) -> None:
    """Once an epoch, so that between two looks mostly nothing comes: it rises from some epochs to the next."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    unseen = [x for x, _ in loader(device, rows=256, steps=4)]
    results: dict[int, list[torch.Tensor]] = {}
    for epoch in range(10):
        model.train()
        for x, y in loader(device, steps=30):
            train_on(model, optimizer, x, y)
        model.eval()
        with torch.no_grad():
            results[epoch] = [model[0](x) for x in unseen]  # <- leak; fix: results.clear()


@leaks("tensor-growth", holder="neighbours", bytes_each=(2 * 4096 * INDEX_BYTES, 4096 * FLOAT_BYTES))
def sparse_matrices(device: str) -> None:
    """The graph of each batch, as a graph network takes it: a sparse matrix has no storage of its own, but values and indices."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    neighbours: list[torch.Tensor] = []
    for x, y in loader(device):
        places, values = torch.zeros(2, 4096, dtype=torch.long, device=device), torch.ones(4096, device=device)
        matrix = torch.sparse_coo_tensor(places, values, (32, 32), check_invariants=False)
        del places, values
        train_on(model, optimizer, x, y)
        neighbours.append(matrix)  # <- leak; fix: neighbours[:] = [matrix]
        del matrix


@leaks("tensor-growth", holder="<lambda>", bytes_each=256 * 128 * FLOAT_BYTES, advice=".remove() it")
def hooks_of_a_weight(device: str) -> None:
    """A hook more each step, with the mask that it was made for: only the weight's C++ part knows its hooks."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    weight = model[0].weight
    for x, y in loader(device):
        mask = torch.ones(256, 128, device=device)
        hooks = [weight.register_hook(lambda gradient, mask=mask: gradient * mask)]  # <- leak
        del mask
        train_on(model, optimizer, x, y)
        # fix here: hooks.pop().remove()
        hooks.clear()


class Branch:
    """A node of a search."""

    def __init__(self, above: Any) -> None:
        self.above = above
        self.seen: list[Any] = []


@leaks(
    "tensor-growth",
    holder="seen",
    bytes_each=(32 * 256 * FLOAT_BYTES,) * 3,
    advice="each Branch leads to an earlier one by .above",
)
def branches_of_a_search(device: str) -> Any:
    """Each move goes one branch down, and from there a way leads up to all that was seen before."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    branch = Branch(None)
    for x, y in loader(device, steps=40):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        branch = Branch(branch)  # fix here: branch = Branch(None)
        for _ in range(3):
            with torch.no_grad():
                features = model[0](x + torch.randn_like(x))
            branch.seen.append(features)  # <- leak
    return branch
