"""Blocks are skipped at random, fewer of them as the training goes on, so that memory rises on average and varies from step to step. Pattern: stochastic depth with a schedule."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

rng = random.Random(3)
blocks = nn.ModuleList(nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96)) for _ in range(10)).cuda()
opt = torch.optim.SGD(blocks.parameters(), lr=0.01)
for step in range(120):
    h = x = torch.randn(128, 96, device="cuda")
    for block in blocks:
        if rng.random() < 0.2 + 0.8 * step / 120:
            h = h + block(h)
    loss = (h - x).square().mean() + blocks[0](x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
