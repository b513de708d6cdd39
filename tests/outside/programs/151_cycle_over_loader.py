"""itertools.cycle over a loader whose batches are moved to the GPU: cycle keeps a copy of every batch of the first pass. Source: https://github.com/pytorch/pytorch/issues/23900 - established that cycle saves all elements."""
EXPECTED = {"kind": "leak", "holder": ["cycle", "batches"], "growing": True}

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def on_device(loader):
    for x, y in loader:
        yield x.cuda(non_blocking=True), y.cuda(non_blocking=True)


data = TensorDataset(torch.randn(8192, 256), torch.randint(0, 5, (8192,)))
batches = itertools.cycle(on_device(DataLoader(data, batch_size=64, shuffle=True)))  # <- here
model = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 5)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(100):
    x, y = next(batches)  # <- here
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print("done")
