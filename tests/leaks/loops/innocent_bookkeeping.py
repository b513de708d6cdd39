"""Loops that keep numbers, tensors or graphs as they should: what they hold is small, bounded, or soon gone."""

from __future__ import annotations

import collections
import copy
import functools
import queue
import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent

from .models import FLOAT_BYTES, loader, mlp

WEIGHTS = (128 * 256 + 256 + 256 * 10 + 10) * FLOAT_BYTES


def train_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


@functools.lru_cache(maxsize=64)
def angles(length: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    turns = torch.outer(torch.arange(64.0, device=device), torch.arange(float(length), device=device))
    return turns.cos(), turns.sin()


@innocent(
    "a cache with room for sixty-four, which fills as lengths come", settles_bytes=64 * 2 * 64 * 128 * FLOAT_BYTES
)
def cached_function_with_a_bound(device: str) -> None:
    angles.cache_clear()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, (x, y) in enumerate(loader(device, steps=60)):
        cosine, _ = angles(64 + number, device)
        train_on(model, optimizer, x * cosine.mean(), y)
        del cosine
    angles.cache_clear()


class SmoothedValue:
    """As in the training scripts of detection models: a window of values."""

    def __init__(self) -> None:
        self.window: collections.deque[torch.Tensor] = collections.deque(maxlen=20)


@innocent("each meter's window has the last twenty, with their graphs", settles_bytes=22 * 32 * 1024 * FLOAT_BYTES)
def meters_with_windows(device: str) -> None:
    """A loss stands on the storage of all errors, so that the windows hold much; nothing goes with `losses` alone."""
    model = mlp(device, outputs=1024)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meters: dict[str, SmoothedValue] = collections.defaultdict(SmoothedValue)
    for x, _ in loader(device, steps=60):
        out = model(x)
        losses = {"box": F.smooth_l1_loss(out, torch.zeros_like(out)), "mask": out.mean()}
        del out
        optimizer.zero_grad()
        (losses["box"] + losses["mask"]).backward()
        optimizer.step()
        for name, value in losses.items():
            meters[name].window.append(value)


@innocent("``loss`` and ``out`` of the last step live into the next: a few KB")
def plain(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("numbers, not tensors")
def losses_as_numbers(device: str) -> list[float]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses, total = [], 0.0
    for x, y in loader(device):
        loss = train_on(model, optimizer, x, y)
        losses.append(loss.item())
        total += loss.item()
    return losses


@innocent("a list of scalar tensors grows for ever, without graphs: 4 bytes a step", settles_bytes=40 * 512)
def losses_detached(device: str) -> list[torch.Tensor]:
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    losses, total = [], torch.zeros((), device=device)
    for x, y in loader(device, steps=40):
        loss = train_on(model, optimizer, x, y)
        losses.append(loss.detach())
        total += loss.detach()
    return losses


@innocent("five losses with their graphs are always there, never six", settles_bytes=5 * 512)
def window_of_losses(device: str) -> float:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    window: collections.deque[torch.Tensor] = collections.deque(maxlen=5)
    mean = 0.0
    for x, y in loader(device, steps=30):
        window.append(train_on(model, optimizer, x, y))
        mean = float(sum(loss.item() for loss in window) / len(window))
    return mean


@innocent("the best loss is kept with its graph: one old graph, however long it trains", settles_bytes=512)
def best_loss(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    best = None
    for x, y in loader(device, steps=30):
        loss = train_on(model, optimizer, x, y)
        if best is None or loss < best:
            best = loss
    return best


@innocent("a queue between threads that is read as fast as it is filled", settles_bytes=8 * 512)
def queue_that_is_read(device: str) -> None:
    log_queue: queue.Queue[Any] = queue.Queue(maxsize=4)

    def write() -> None:
        while log_queue.get() is not None:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        log_queue.put(train_on(model, optimizer, x, y).detach())
    log_queue.put(None)
    writer.join()


@innocent("a deque with a bound that is not yet reached", settles_bytes=30 * 2 * 32 * 128 * FLOAT_BYTES)
def replay_that_fills(device: str) -> int:
    """maxlen bounds it, however long it trains."""
    model = mlp(device, outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replay: collections.deque[Any] = collections.deque(maxlen=10_000)
    for _ in range(30):
        replay.append((torch.randn(32, 128, device=device), torch.randn(32, 128, device=device)))
        state, next_state = replay[len(replay) // 2]
        loss = (model(state) - model(next_state)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(replay)


@innocent(
    "a deque with a bound that was reached long ago: new tensors come, as many go",
    settles_bytes=4 * 64 * 128 * FLOAT_BYTES,
)
def replay_that_is_full(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    replay: collections.deque[Any] = collections.deque(maxlen=4)
    for x, y in loader(device, steps=30, rows=64):
        replay.append((x, y))
        train_on(model, optimizer, *replay[0])


@innocent("a cache that takes the first twelve samples and no more", settles_bytes=12 * 64 * 128 * FLOAT_BYTES)
def cache_with_a_bound(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    augmented: dict[int, torch.Tensor] = {}
    for index, (x, y) in enumerate(loader(device, steps=40, rows=64)):
        key = index % 12
        if key not in augmented:
            augmented[key] = x + 0.1 * torch.randn_like(x)
        train_on(model, optimizer, augmented[key], y)


@innocent("a dict whose keys come again: each value replaces the one before", settles_bytes=8 * 64 * 128 * FLOAT_BYTES)
def slots_that_are_overwritten(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last_seen: dict[str, torch.Tensor] = {}
    for index, (x, y) in enumerate(loader(device, steps=36, rows=64)):
        last_seen[f"shard {index % 8}"] = x.clone()
        train_on(model, optimizer, x, y)


@innocent("predictions of a validation pile up and are gone when it ends")
def predictions_by_epoch(device: str) -> list[float]:
    model = mlp(device, outputs=64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scores = []
    for _ in range(5):
        for x, y in loader(device, steps=5):
            train_on(model, optimizer, x, y)
        predictions = []
        model.eval()
        with torch.no_grad():
            for x, _ in loader(device, steps=8, rows=64):
                predictions.append(model(x))
        scores.append(torch.cat(predictions).mean().item())
        predictions.clear()
        model.train()
    return scores


@innocent("inference_mode, outputs kept to the end of one pass", settles_bytes=24 * 64 * 64 * FLOAT_BYTES)
def inference_of_one_pass(device: str) -> torch.Tensor:
    """All outputs of a data set are wanted: they pile up because that is the task, batch by batch in one list."""
    model = mlp(device, outputs=8).eval()
    outputs = []
    with torch.inference_mode():
        for x, _ in loader(device, steps=24, rows=64):
            outputs.append(model(x))
    return torch.cat(outputs)


@innocent("the best weights are copied whenever they are better, and replace the copy before", settles_bytes=WEIGHTS)
def early_stopping(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    best_state, best_score = None, -1.0
    for epoch in range(6):
        for x, y in loader(device, steps=5):
            train_on(model, optimizer, x, y)
        score = float(epoch)
        if score > best_score:
            best_state, best_score = copy.deepcopy(model.state_dict()), score
    return best_state


@innocent("the last three checkpoints are kept in memory", settles_bytes=4 * WEIGHTS)
def last_three_checkpoints(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoints: collections.deque[Any] = collections.deque(maxlen=3)
    for x, y in loader(device, steps=30):
        train_on(model, optimizer, x, y)
        checkpoints.append({name: value.clone() for name, value in model.state_dict().items()})
    return checkpoints


@innocent(
    "hooks that keep the last activation of every layer, each time the newest", settles_bytes=128 * 256 * FLOAT_BYTES
)
def newest_activations(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    activations: dict[str, torch.Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            activations[name] = output.detach()[:16]

        return hook

    for name, layer in model.named_children():
        layer.register_forward_hook(keep(name))
    for x, y in loader(device):
        train_on(model, optimizer, x, y)


@innocent("norms of gradients as numbers, histograms on the host")
def statistics_of_gradients(device: str) -> list[Any]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    statistics = []
    for x, y in loader(device):
        train_on(model, optimizer, x, y)
        norms = [p.grad.norm().item() for p in model.parameters()]
        statistics.append((max(norms), model[2].weight.grad.detach().mean().item()))
    return statistics


class Pair:
    def __init__(self) -> None:
        self.other: Any = None
        self.label = "x" * 100


@innocent("much garbage in cycles, and no tensor in it but a scalar", settles_bytes=24 * 512)
def cycles_without_tensors(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        for _ in range(50):
            one, two = Pair(), Pair()
            one.other, two.other = two, one
        one.label = train_on(model, optimizer, x, y).detach()


@innocent("the next batch is fetched while this one is trained: two large batches are always there")
def prefetched_batches(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def prefetched(batches: Any) -> Any:
        ahead = None
        for batch in batches:
            if ahead is not None:
                yield ahead
            ahead = batch
        yield ahead

    for x, y in prefetched(loader(device, rows=256)):
        train_on(model, optimizer, x, y)


@innocent("the results of each step are small, and only those of the last ten are there", settles_bytes=10 * 512)
def results_of_ten_steps(device: str) -> list[Any]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    results: list[Any] = []
    for step, (x, y) in enumerate(loader(device, steps=36)):
        loss = train_on(model, optimizer, x, y)
        results.append({"step": step, "loss": loss, "rows": len(x)})
        if len(results) == 10:
            print(sum(result["loss"].item() for result in results) / 10)
            results = []
    return results


@innocent("the first loss and the last, with their graphs: two, and no more from step to step")
def first_and_last(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept: dict[str, Any] = {}
    for x, y in loader(device, steps=40):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        kept.setdefault("first", loss)
        kept["last"] = loss
    return kept


@innocent("a window of the newest results, of which a variable has the newest too, and a summary all its numbers")
def newest_of_a_window(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    window: Any = collections.deque(maxlen=8)
    summary: dict[str, Any] = {}
    for x, y in loader(device, steps=60):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        row = {"loss": loss, "labels": y}
        window.append(row)
        summary.update(row)
    return summary


class Writer:
    def __init__(self) -> None:
        self.rows: list[dict[str, torch.Tensor]] = []
        self.means: list[dict[str, float]] = []

    def add(self, **row: torch.Tensor) -> None:
        self.rows.append(row)
        if len(self.rows) == 20:
            self.flush()

    def flush(self) -> None:
        self.means.append({key: sum(row[key].mean().item() for row in self.rows) for key in self.rows[0]})
        self.rows = []


@innocent("a writer that starts a new list after each twenty rows", settles_bytes=20 * 64 * 256 * FLOAT_BYTES)
def writer_of_twenty_rows(device: str) -> Any:
    model, writer = mlp(device), Writer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, steps=70, rows=64):
        train_on(model, optimizer, x, y)
        writer.add(batch=x.repeat(1, 2))
    return writer.means


@innocent(
    "the last result, which an object has too, detached, for the next step: to delete the variable alone frees nothing at all"
)
def features_of_the_last_step(device: str) -> None:
    body = nn.Sequential(nn.Linear(128, 512), nn.ReLU()).to(device)
    head = nn.Linear(512, 10).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    memory = Memory(torch.zeros(128, 512, device=device))
    for x, y in loader(device, rows=128, steps=40):
        features = body(x)
        loss = F.cross_entropy(head(features), y) + (features - memory.features).square().mean(0).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.features = features.detach()


class Memory:
    """Of the step before."""

    def __init__(self, features: torch.Tensor) -> None:
        self.features = features
