"""The training of ``vramscope demo``: plain PyTorch, without vramscope.

A small language model learns to repeat a sequence of words. Some sequences are short, so that steps differ. Position
embeddings, AdamW and autocast give each category of memory some bytes.
"""

from __future__ import annotations

import argparse
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    batch: int
    positions: int
    words: int = 4096


SHAPES = {
    "cpu": Shape(layers=2, width=128, batch=8, positions=64),
    "cuda": Shape(layers=6, width=512, batch=16, positions=512),
}
NEEDED_BYTES = 3 * GIB
"""Memory of the larger shape. A device with less free memory trains the smaller one."""


class Model(nn.Module):  # type: ignore[misc]  # torch is not read by mypy here
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.words, shape.width)
        self.position = nn.Embedding(shape.positions, shape.width)
        layer = nn.TransformerEncoderLayer(
            shape.width, 8, 4 * shape.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, shape.words)

    def forward(self, words: Tensor) -> Tensor:
        """Return the loss of predicting the words themselves. ``words``: integers, (batch, positions)."""
        positions = torch.arange(words.shape[1], device=words.device)
        logits = self.head(self.layers(self.word(words) + self.position(positions)))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=0, help="Optimizer steps (0 = until Ctrl-C)")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # enough for this model, and leaves cores to the server

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    large = device.type == "cuda" and torch.cuda.mem_get_info()[0] > NEEDED_BYTES
    shape = SHAPES["cuda" if large else "cpu"]
    where = torch.cuda.get_device_name() if device.type == "cuda" else "the CPU (PyTorch sees no GPU here)"
    print(f"training {shape.layers} layers of width {shape.width} on {where}", flush=True)

    model = Model(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    try:
        for step in itertools.count(1):
            length = shape.positions // 2 if step % 8 == 0 else shape.positions
            words = torch.randint(shape.words, (shape.batch, length)).to(device)
            # bf16 is quick on GPUs; many CPUs only emulate it
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = model(words)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 100 == 0 or step == steps:
                print(f"step {step}: loss {loss.item():.2f}", flush=True)
            if step == steps:
                break
    except KeyboardInterrupt:
        print(f"stopped in step {step}", flush=True)


if __name__ == "__main__":
    main()
