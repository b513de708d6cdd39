"""Sums of the parts of a loss are kept in a Counter, whose update adds the tensors with their graphs. Pattern: Counter.update with losses that have a graph."""
EXPECTED = {"kind": "leak", "holder": ["totals"], "growing": True}

from collections import Counter

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(256, 1)

    def forward(self, x):
        hidden = self.body(x).relu()
        return {"copy": (self.first(hidden) - x).square().mean(), "size": self.second(hidden).abs().mean()}


model = Model().cuda()
opt = torch.optim.Adam(model.parameters())
totals = Counter()
for step in range(100):
    parts = model(torch.randn(128, 64, device="cuda"))
    opt.zero_grad()
    sum(parts.values()).backward()
    opt.step()
    totals.update(parts)  # <- here
print({name: float(total) / 100 for name, total in totals.items()})
