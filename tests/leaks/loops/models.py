"""The small models and data that the loops train, and what one graph of them saves for its backward."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

FLOAT_BYTES = 4
INDEX_BYTES = 8


def mlp(device: str, inputs: int = 128, hidden: int = 256, outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs)).to(device)


def loader(device: str, steps: int = 24, rows: int = 32, inputs: int = 128, classes: int = 10) -> DataLoader:
    """This number of batches of rows, on the device."""
    x = torch.randn(steps * rows, inputs, device=device)
    y = torch.randint(0, classes, (steps * rows,), device=device)
    return DataLoader(TensorDataset(x, y), batch_size=rows)


def mlp_graph_bytes(rows: int = 32, inputs: int = 128, hidden: int = 256) -> int:
    """What ``mlp(x)`` saves for its backward: the batch, and what the hidden layer gave (of ReLU in and out are one)."""
    return rows * (inputs + hidden) * FLOAT_BYTES


def cross_entropy_bytes(rows: int = 32, classes: int = 10) -> int:
    """What ``cross_entropy`` saves: the log-probabilities and the targets (and a scalar)."""
    return rows * (classes * FLOAT_BYTES + INDEX_BYTES)


class Block(nn.Module):
    """One layer of a transformer, attention written out."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attention = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).softmax(-1)
        x = x + self.project((attention @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(x), attention, k.contiguous(), v.contiguous()


class LanguageModel(nn.Module):
    """Tokens in, logits over the vocabulary out: (batch, length) -> (batch, length, vocabulary)."""

    def __init__(self, vocabulary: int = 2048, width: int = 32, length: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads=2) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)[0]
        return self.head(x)


def language_loss(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())
