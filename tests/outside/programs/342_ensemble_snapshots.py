"""Every ten steps the weights are copied to a list for a snapshot ensemble; all copies stay on the device and no line limits them. Pattern: snapshot ensembles without .cpu()."""
EXPECTED = {"kind": "leak", "holder": ["snapshots"], "growing": True}

import torch
from torch import nn


class Training:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.opt, 10)
        self.snapshots = []

    def step(self):
        x = torch.randn(64, 64, device="cuda")
        loss = (self.net(x) - x).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.schedule.step()

    def run(self, cycles):
        for _ in range(cycles):
            for _ in range(10):
                self.step()
            self.snapshots.append({k: v.detach().clone() for k, v in self.net.state_dict().items()})  # <- here


training = Training()
training.run(20)
print(len(training.snapshots))
