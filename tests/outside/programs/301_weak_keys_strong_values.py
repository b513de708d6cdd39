"""Statistics of a batch are found by the batch in a WeakKeyDictionary, so that they go with it; but each has its batch as an attribute, which keeps the key. 80 KiB a step. Pattern: the warning in the documentation of weak dictionaries."""
EXPECTED = {"kind": "leak", "holder": ["table", "statistics", "Statistics"], "growing": True}

import weakref

import torch
from torch import nn


class Batch:
    def __init__(self, x):
        self.x = x


class Statistics:
    def __init__(self, batch):
        self.batch = batch  # <- here
        self.mean = batch.x.mean(0)


table = weakref.WeakKeyDictionary()


def statistics(batch):
    if batch not in table:
        table[batch] = Statistics(batch)  # <- here
    return table[batch]


net = nn.Sequential(nn.Linear(160, 40), nn.ReLU(), nn.Linear(40, 160)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(75):
    batch = Batch(torch.randn(128, 160, device="cuda"))
    centred = batch.x - statistics(batch).mean
    loss = (net(centred) - centred).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
