"""A trainer sums its losses by name, with their graphs; get(name, 0) + value. The sums are read once an epoch. Pattern: running_loss += loss, in a class."""
EXPECTED = {"kind": "leak", "holder": ["sums"], "growing": True}

import torch
from torch import nn


class Trainer:
    def __init__(self, net, lr=1e-3):
        self.net = net
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=lr)
        self.sums, self.batches = {}, 0

    def log(self, **losses):
        for name, value in losses.items():
            self.sums[name] = self.sums.get(name, 0) + value  # <- here
        self.batches += 1

    def step(self, x, y):
        out = self.net(x)
        data = nn.functional.cross_entropy(out, y)
        size = 1e-4 * sum(p.square().sum() for p in self.net.parameters())
        self.optimizer.zero_grad()
        (data + size).backward()
        self.optimizer.step()
        self.log(data=data, size=size)

    def fit(self, steps):
        for _ in range(steps):
            self.step(torch.randn(64, 80, device="cuda"), torch.zeros(64, dtype=torch.long, device="cuda"))
        print({name: float(value) / self.batches for name, value in self.sums.items()})


Trainer(nn.Sequential(nn.Linear(80, 160), nn.ReLU(), nn.Linear(160, 10)).cuda()).fit(90)
