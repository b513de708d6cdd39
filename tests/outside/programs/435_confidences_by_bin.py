"""The calibration of a model is measured every ten steps. The confidences are put into a list for each bin, and value() leaves them there. 320 KiB a validation. Pattern: metrics that are never reset."""
EXPECTED = {"kind": "leak", "holder": ["bins", "Calibration", "calibration"], "growing": True, "raises_peak": True}

from collections import defaultdict

import torch
from torch import nn


class Calibration:
    def __init__(self, count):
        self.count, self.bins = count, defaultdict(list)

    def update(self, probabilities):
        for number, part in enumerate(probabilities.chunk(self.count)):
            self.bins[number].append(part)  # <- here

    def value(self):
        return sum(torch.cat(parts).mean().item() for parts in self.bins.values())


model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 20)).cuda()
opt = torch.optim.Adam(model.parameters())
calibration = Calibration(5)
for step in range(200):
    loss = model(torch.randn(64, 64, device="cuda")).logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 9:
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                calibration.update(model(torch.randn(1024, 64, device="cuda")).softmax(-1))
        model.train()
        print(step, calibration.value() >= 0)
