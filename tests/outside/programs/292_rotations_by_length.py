"""Tables of rotary positions are made for each length and cached, at most 40; lengths are drawn from 100, so that the cache is full after a while and then drops old ones. Pattern: lru_cache with maxsize."""
EXPECTED = {"kind": "innocent"}

import functools
import random

import torch
from torch import nn


@functools.lru_cache(maxsize=40)
def rotations(length):
    angles = torch.arange(length, device="cuda")[:, None] / 10000 ** (torch.arange(32, device="cuda") / 32)
    return (angles.cos(), angles.sin())


random.seed(8)
project = nn.Linear(64, 64).cuda()
opt = torch.optim.Adam(project.parameters())
for step in range(150):
    x = torch.randn(4, random.randint(101, 200), 64, device="cuda")
    cos, sin = rotations(x.shape[1])
    left, right = project(x).chunk(2, -1)
    rotated = torch.cat([left * cos - right * sin, left * sin + right * cos], -1)
    loss = (rotated - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
