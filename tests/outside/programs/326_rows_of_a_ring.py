"""A replay memory of 640 rows is a list that is filled in the first 80 steps, eight rows a step, each a copy; then the oldest row is replaced. Pattern: replay memories with a position."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn


class Ring:
    def __init__(self, room):
        self.room, self.rows, self.position = room, [], 0

    def put(self, row):
        if len(self.rows) < self.room:
            self.rows.append(row)
        else:
            self.rows[self.position] = row
        self.position = (self.position + 1) % self.room


ring = Ring(640)
net = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 256)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(200):
    for row in torch.randn(8, 256, device="cuda"):
        ring.put(row.clone())
    x = torch.stack(random.sample(ring.rows, min(len(ring.rows), 64)))
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
