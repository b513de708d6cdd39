"""Normalised batches are found by their number in a WeakValueDictionary as long as somebody uses them; three augmentations of a step do. Pattern: weak caches."""
EXPECTED = {"kind": "innocent"}

import weakref

import torch
from torch import nn


class Batch:
    def __init__(self, number):
        self.number, self.data = number, torch.randn(128, 64, device="cuda")


class Batches:
    def __init__(self):
        self.known = weakref.WeakValueDictionary()

    def __getitem__(self, number):
        batch = self.known.get(number)
        if batch is None:
            batch = self.known[number] = Batch(number)
        return batch


batches = Batches()
net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(100):
    users = [(batches[step], factor) for factor in (0.9, 1.0, 1.1)]
    views = [net(batch.data * factor) for batch, factor in users]
    loss = sum((one - views[0]).square().mean() for one in views[1:]) - views[0].var(0).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
