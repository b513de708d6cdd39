"""A metric keeps its predictions and targets in lists on the device until the epoch ends; then it computes and starts with new lists. Four epochs of thirty-five steps. Pattern: metrics with list states."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {}
        self.add_state("preds", [])
        self.add_state("targets", [])

    def add_state(self, name, default):
        self._defaults[name] = default
        setattr(self, name, list(default))

    def reset(self):
        for name, default in self._defaults.items():
            setattr(self, name, list(default))

    def update(self, preds, targets):
        self.preds.append(preds.detach())
        self.targets.append(targets)

    def compute(self):
        return (torch.cat(self.preds).argmax(-1) == torch.cat(self.targets)).float().mean()


metric = Metric()
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32)).cuda()
opt = torch.optim.Adam(net.parameters())
for epoch in range(4):
    for step in range(35):
        x, y = torch.randn(256, 64, device="cuda"), torch.randint(0, 32, (256,), device="cuda")
        out = net(x)
        loss = nn.functional.cross_entropy(out, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        metric.update(out, y)
    print(epoch, float(metric.compute()))
    metric.reset()
