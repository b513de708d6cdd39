"""The stream of batches is split with itertools.tee, for a check that looks at the first batch only; tee keeps all that the other half has read. 32 KiB a step. Pattern: tee with one reader ahead of the other."""
EXPECTED = {"kind": "leak", "holder": ["tee", "for_checks"], "growing": True}

import itertools

import torch
from torch import nn


def batches(count):
    for _ in range(count):
        yield torch.randn(128, 64, device="cuda")  # <- here


model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 64)).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for_training, for_checks = itertools.tee(batches(100))  # <- here
print("first batch", next(for_checks).shape)
for x in for_training:  # <- here
    loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
