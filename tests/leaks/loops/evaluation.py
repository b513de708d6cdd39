"""Evaluations that build graphs nobody walks: kept from batch to batch, or thrown away after they took their memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import leaks

from .models import FLOAT_BYTES, INDEX_BYTES, cross_entropy_bytes, loader, mlp, mlp_graph_bytes

OUT = 10 * FLOAT_BYTES
"""Bytes of one row of the model's output."""


@leaks("growing-eval", holder="total", bytes_each=mlp_graph_bytes() + cross_entropy_bytes())
def total_of_an_evaluation(device: str) -> float:
    """eval() switches dropout off, not the graphs."""
    model = mlp(device).eval()
    total = 0
    # fix over: with torch.no_grad():
    for x, y in loader(device):
        total += F.cross_entropy(model(x), y)  # <- leak
    return float(total)


@leaks("growing-eval", holder="predictions", bytes_each=mlp_graph_bytes() + 32 * OUT)
def predictions_of_an_evaluation(device: str) -> torch.Tensor:
    model = mlp(device).eval()
    predictions = []
    # fix over: with torch.no_grad():
    for x, _ in loader(device):
        predictions.append(model(x))  # <- leak
    return torch.cat(predictions)


@leaks("growing-eval", holder="total", bytes_each=mlp_graph_bytes() + cross_entropy_bytes())
def total_without_a_loader(device: str) -> float:
    model = mlp(device).eval()
    total = torch.zeros((), device=device)
    # fix over: with torch.no_grad():
    for _ in range(24):
        x, y = torch.randn(32, 128, device=device), torch.randint(0, 10, (32,), device=device)
        total = total + F.cross_entropy(model(x), y)  # <- leak
    return float(total)


@leaks("growing-eval", holder="features", bytes_each=mlp_graph_bytes(rows=64, hidden=512) + 64 * 4 * FLOAT_BYTES)
def features_by_chunks(device: str) -> torch.Tensor:
    """A frozen backbone that is not frozen: its parameters still ask for gradients."""
    backbone = mlp(device, hidden=512, outputs=4).eval()
    images = torch.randn(24 * 64, 128, device=device)
    features = []
    # fix over: with torch.no_grad():
    for chunk in images.split(64):
        rows = chunk.clone()
        features.append(backbone(rows))  # <- leak
    return torch.cat(features)


@leaks("no_grad-missing", holder="out", held_bytes=mlp_graph_bytes(rows=256) + 256 * OUT)
def last_graph_of_an_evaluation(device: str) -> float:
    """Only numbers are kept, but while a batch is computed, the graph of the one before it is still there."""
    model = mlp(device).eval()
    correct = 0
    # fix over: with torch.no_grad():
    for x, y in loader(device, rows=256):
        out = model(x)  # <- leak
        correct += (out.argmax(1) == y).sum().item()
    return correct


@leaks("no_grad-missing", holder=("model", "Sequential", "validate"))
def graph_of_a_moment(device: str) -> float:
    """No variable holds anything; each batch all the same saves what only a backward would need."""
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(8)], nn.Linear(128, 10)).to(device).eval()
    total = 0.0

    # fix here: @torch.no_grad()
    def validate(x: torch.Tensor, y: torch.Tensor) -> float:
        return F.cross_entropy(model(x), y).item()  # <- leak

    for x, y in loader(device, rows=128):
        total += validate(x, y)
    return total


def validated(model: nn.Module, device: str) -> float:
    """A validation of eight batches in the midst of a training."""
    total = 0.0
    # fix over: with torch.no_grad():
    for x, y in loader(device, steps=8, rows=256):
        loss = F.cross_entropy(model(x), y)  # <- leak of validation_now_and_then
        total += loss.item()
    return total


@leaks("no_grad-missing", holder="loss", held_bytes=mlp_graph_bytes(rows=256) + cross_entropy_bytes(rows=256))
def validation_now_and_then(device: str) -> list[float]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scores = []
    for _ in range(5):
        for x, y in loader(device, steps=5):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scores.append(validated(model, device))
    return scores


def validation_loss(model: nn.Module, device: str) -> Any:
    """The mean as a tensor, and with it the graphs of all batches."""
    total = 0
    # fix over: with torch.no_grad():
    for x, y in loader(device, steps=4):
        total = total + F.cross_entropy(model(x), y)
    return total / 4


@leaks(
    ("growing-eval", "growing"),
    holder="scores",
    bytes_each=4 * (mlp_graph_bytes() + cross_entropy_bytes()),
    every=3,
    also=("no_grad-missing total",),
)
def scores_of_validations(device: str) -> list[Any]:
    """Every third step a validation; its mean is kept, and with it four graphs."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scores = []
    for step, (x, y) in enumerate(loader(device, steps=36), 1):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 3 == 0:
            score = validation_loss(model, device)
            scores.append(score)  # <- leak
    return scores


def predicted(model: nn.Module, device: str) -> Iterator[torch.Tensor]:
    for x, _ in loader(device, rows=256):
        yield model(x)


@leaks("no_grad-missing", holder=("prediction", "model"), held_bytes=mlp_graph_bytes(rows=256) + 256 * OUT)
def predictions_of_a_generator(device: str) -> list[int]:
    model = mlp(device).eval()
    best = []
    # fix over: with torch.no_grad():
    for prediction in predicted(model, device):  # <- leak
        best.extend(prediction.argmax(1).tolist())
    return best


@leaks("growing-eval", holder="outputs", bytes_each=mlp_graph_bytes(rows=64) + 64 * OUT)
def outputs_moved_to_the_cpu(device: str) -> torch.Tensor:
    """``.cpu()`` is recorded too: the copy on the host keeps the graph on the device."""
    model = mlp(device).eval()
    outputs = []
    # fix over: with torch.no_grad():
    for x, _ in loader(device, rows=64):
        out = model(x).cpu()
        outputs.append(out)  # <- leak
    return torch.cat(outputs)


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.cell, self.head = nn.Embedding(100, 32), nn.RNNCell(32, 64), nn.Linear(64, 100)

    def forward(self, words: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.cell(self.embedding(words), hidden)
        return self.head(hidden).argmax(1), hidden


@leaks("growing-eval", holder="hidden", bytes_each=64 * (32 + 64) * FLOAT_BYTES + 64 * INDEX_BYTES)
def generation(device: str) -> torch.Tensor:
    """Text is generated word by word; the hidden state carries the graph of all words before."""
    model = Writer().to(device).eval()
    words = torch.zeros(64, dtype=torch.long, device=device)
    hidden = torch.zeros(64, 64, device=device)
    # fix over: with torch.no_grad():
    for _ in range(40):
        words, hidden = model(words, hidden)  # <- leak
    return words
