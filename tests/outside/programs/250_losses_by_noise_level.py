"""Diffusion: for each of 50 noise levels a tensor with its last losses is kept and replaced, and levels are drawn at random. Pattern: importance sampling of noise levels."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn


class LossAware:
    def __init__(self, levels):
        self.levels = levels
        self.recent = {}

    def draw(self, rng):
        return rng.randrange(self.levels)

    def update(self, level, losses):
        old = self.recent.get(level)
        self.recent[level] = losses if old is None else 0.5 * (old + losses)


rng = random.Random(21)
sampler = LossAware(50)
net = nn.Sequential(nn.Linear(65, 128), nn.SiLU(), nn.Linear(128, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(260):
    level = sampler.draw(rng)
    x = torch.randn(512, 64, device="cuda")
    noisy = torch.cat([x + level / 50, torch.full((512, 1), level / 50, device="cuda")], 1)
    losses = (net(noisy) - x).square()
    opt.zero_grad()
    losses.mean().backward()
    opt.step()
    sampler.update(level, losses.detach())
