"""Class prototypes are a moving average of features; the average is not detached, so each prototype keeps the graphs of all episodes. Pattern: prototypical networks with momentum."""
EXPECTED = {"kind": "leak", "holder": ["prototypes", "table"], "growing": True}

import torch
from torch import nn


class Prototypes:
    def __init__(self, momentum=0.9):
        self.momentum = momentum
        self.table = {}

    def update(self, label, features):
        mean = features.mean(0)
        old = self.table.get(label)
        self.table[label] = mean if old is None else self.momentum * old + (1 - self.momentum) * mean  # <- here


encoder = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
prototypes = Prototypes()
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
for episode in range(60):
    loss = 0.0
    for label in range(4):
        x = torch.randn(96, 128, device="cuda")
        f = encoder(x)
        if label in prototypes.table:
            loss = loss + (f - prototypes.table[label].detach()).square().mean()
        else:
            loss = loss + f.square().mean()
        prototypes.update(label, f)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
