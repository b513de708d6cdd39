"""A metric object is made for each epoch, but the dictionary with its scores is an attribute of the class: nothing is dropped with the object. 200 KiB a validation batch. Pattern: class attributes that were meant for instances."""
EXPECTED = {"kind": "leak", "holder": ["scores", "PerClassScores"], "growing": True, "bytes_per_step": 102_400, "raises_peak": True}

from collections import defaultdict

import torch
from torch import nn


class PerClassScores:
    scores = defaultdict(list)

    def update(self, epoch, logits):
        self.scores[epoch].append(logits.softmax(-1))  # <- here

    def value(self, epoch):
        return torch.cat(self.scores[epoch]).max(-1).values.mean().item()


net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 256), nn.ReLU(), nn.Linear(256, 200)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
for epoch in range(12):
    for batch in range(12):
        images = torch.randn(64, 3, 16, 16, device="cuda")
        labels = torch.randint(0, 200, (64,), device="cuda")
        loss = nn.functional.cross_entropy(net(images), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    metric = PerClassScores()
    with torch.no_grad():
        for batch in range(6):
            metric.update(epoch, net(torch.randn(256, 3, 16, 16, device="cuda")))
    print(epoch, metric.value(epoch) >= 0)
