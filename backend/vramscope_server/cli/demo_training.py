"""The training that ``vramscope demo`` watches: plain PyTorch that knows nothing of vramscope.

A small language model learns to repeat a sequence of words. Now and then sequences are short, so that steps differ; a
learned table of positions, AdamW and autocast give each category of memory something to hold.
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
"""What the larger shape takes at most; a device with less free trains the smaller one."""


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
        """The loss of telling the words themselves; words: (batch, positions), whole numbers."""
        positions = torch.arange(words.shape[1], device=words.device)
        told = self.head(self.layers(self.word(words) + self.position(positions)))
        return nn.functional.cross_entropy(told.flatten(0, 1).float(), words.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=0, help="optimizer steps; 0: until Ctrl-C")
    steps = parser.parse_args().steps
    torch.manual_seed(0)
    torch.set_num_threads(1)  # enough for a model this small, and quick beside the server on a busy machine

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
