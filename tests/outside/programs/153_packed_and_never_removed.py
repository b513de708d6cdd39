"""Saved activations are put into a dictionary by pack and unpack hooks, as a first step to offloading; unpack reads the entry and leaves it there. Pattern: saved_tensors_hooks experiments."""
EXPECTED = {"kind": "leak", "holder": ["parked"], "growing": True}

import itertools

import torch
from torch import nn

parked = {}
ids = itertools.count()


def pack(tensor):
    key = next(ids)
    parked[key] = tensor  # <- here
    return key


def unpack(key):
    return parked[key]


model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(48):
    x = torch.randn(256, 64, device="cuda")
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
