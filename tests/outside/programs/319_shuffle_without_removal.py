"""A stream is shuffled through a buffer: an example goes in, a random one comes out, but it is looked up and not taken out. 16 KiB an example, four a step. Pattern: shuffle buffers of iterable datasets."""
EXPECTED = {"kind": "leak", "holder": ["buffer", "shuffled"], "growing": True}

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Shuffled(IterableDataset):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        buffer = []
        for _ in range(self.count):
            buffer.append(torch.randn(64, 64, device="cuda"))  # <- here
            if len(buffer) > 16:
                yield random.choice(buffer)  # <- here


net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for batch in DataLoader(Shuffled(400), batch_size=4):
    loss = (net(batch) - batch).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
