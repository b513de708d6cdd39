"""Coordinate grids are cached by height and width; the sizes come from 24 buckets, drawn at random, and the cache is full after a while. Pattern: warm-up of caches by shape."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn


class Coordinates(nn.Module):
    def __init__(self):
        super().__init__()
        self.grids = {}
        self.mix = nn.Conv2d(5, 8, 3, padding=1)

    def forward(self, x):
        size = tuple(x.shape[-2:])
        if size not in self.grids:
            ys, xs = torch.meshgrid(*(torch.linspace(-1, 1, n, device=x.device) for n in size), indexing="ij")
            self.grids[size] = torch.stack([ys, xs])[None]
        return self.mix(torch.cat([x, self.grids[size].expand(len(x), -1, -1, -1)], 1))


rng = random.Random(11)
model = Coordinates().cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(150):
    x = torch.randn(2, 3, 32 + 8 * rng.randrange(6), 32 + 8 * rng.randrange(4), device="cuda")
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
