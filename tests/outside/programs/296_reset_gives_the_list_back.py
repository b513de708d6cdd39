"""A metric's reset puts the default list back, which is the very list that was filled; so nothing is ever dropped, though reset is called after each epoch. 32 KiB a step. Pattern: metric states with a mutable default."""
EXPECTED = {"kind": "leak", "holder": ["preds", "defaults"], "growing": True}

import torch
from torch import nn


class Metric:
    def __init__(self):
        self.defaults = {}

    def add_state(self, name, default):
        self.defaults[name] = default
        setattr(self, name, default)

    def reset(self):
        for name, default in self.defaults.items():
            setattr(self, name, default)  # <- here


class Calibration(Metric):
    def __init__(self):
        super().__init__()
        self.add_state("preds", [])  # <- here

    def update(self, preds):
        self.preds.append(preds)  # <- here

    def compute(self):
        return torch.cat(self.preds[-15:]).mean()


metric = Calibration()
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for epoch in range(6):
    for step in range(15):
        logits = net(torch.randn(128, 32, device="cuda"))
        loss = logits.logsumexp(-1).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        metric.update(logits.detach())
    print(epoch, float(metric.compute()))
    metric.reset()
