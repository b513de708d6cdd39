"""Train a GPT-2 with a plain PyTorch loop, watched by vramscope: one line says so.

    python examples/gpt2.py --steps 200

The shape is GPT-2 small's: 12 layers of width 768, 12 heads, 50257 words, 1024 positions. The text counts up from a
random word, so the model learns it within minutes. Without CUDA it says so and takes a model small enough for the CPU.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from vramscope import agent


@dataclass(frozen=True)
class Shape:
    layers: int = 12
    width: int = 768
    heads: int = 12
    words: int = 50257
    positions: int = 1024


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.out = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        q, k, v = self.qkv(x).view(batch, positions, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # (batch, heads, positions, width / heads)
        return self.out(y.transpose(1, 2).reshape(batch, positions, width))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1, self.attention = nn.LayerNorm(shape.width), Attention(shape)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT2(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(shape.words, shape.width), nn.Embedding(shape.positions, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.words, bias=False)
        self.head.weight = self.word.weight  # tied, as in GPT-2
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The loss. Both arguments: (batch, positions), whole numbers."""
        x = self.word(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


def some_text(shape: Shape, batch: int) -> Tensor:
    """Sequences of words that count up from a random one: (batch, positions + 1), whole numbers."""
    begin = torch.randint(shape.words, (batch, 1))
    return (begin + torch.arange(shape.positions + 1)) % shape.words


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=None, help="how many; without it, until Ctrl-C")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--positions", type=int, default=1024, help="tokens a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=None, help="default: cuda where there is a GPU")
    parser.add_argument("--server", default=None, help="where vramscope's server is; default: VRAMSCOPE_SERVER")
    parser.add_argument("--project", default="demo")
    parser.add_argument("--name", default="gpt2-small")
    arguments = parser.parse_args()

    shape = Shape(layers=arguments.layers, positions=arguments.positions)
    batch = arguments.batch
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    emulated = device.type == "cuda" and torch.cuda.get_device_name().startswith("emulated")
    if device.type == "cpu":
        shape, batch = replace(shape, layers=2, width=128, heads=4, words=1024, positions=128), min(batch, 4)
        print("A small model trains on the CPU, where PyTorch does not count memory.", flush=True)
    if emulated:
        print("The GPU is emulated. It counts memory and computes nothing, so there is no loss.", flush=True)

    model = GPT2(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    session = agent.attach(model, server=arguments.server, project=arguments.project, name=arguments.name)

    try:
        for step in itertools.count(1):
            text = some_text(shape, batch).to(device)
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(text[:, :-1], text[:, 1:])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 100 == 0 or step == arguments.steps:
                print(f"step {step}" + ("" if emulated else f": loss {loss.item():.2f}"), flush=True)
            if step == arguments.steps:
                break
    except KeyboardInterrupt:
        print(f"stopped in step {step}")
    session.close()


if __name__ == "__main__":
    main()
