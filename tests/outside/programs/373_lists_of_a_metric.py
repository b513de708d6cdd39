"""A metric keeps the scores of all batches of an epoch on the device, computes from them at its end, and is reset; the epochs become longer once. Pattern: list states of torchmetrics."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Ranking:
    def __init__(self):
        self.reset()

    def reset(self):
        self.scores, self.labels = [], []

    def update(self, scores, labels):
        self.scores.append(scores.detach())
        self.labels.append(labels)

    def compute(self):
        scores, labels = torch.cat(self.scores), torch.cat(self.labels)
        order = scores.argsort(descending=True)
        return labels[order].float().cumsum(0).div(torch.arange(1, len(labels) + 1, device=scores.device)).mean().item()


net = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 1)).cuda()
opt = torch.optim.Adam(net.parameters())
metric = Ranking()
for epoch in range(8):
    for batch in range(12 if epoch < 4 else 18):
        x, y = torch.randn(4096, 50, device="cuda"), torch.randint(0, 2, (4096,), device="cuda")
        out = net(x).squeeze(1)
        loss = nn.functional.binary_cross_entropy_with_logits(out, y.float())
        opt.zero_grad()
        loss.backward()
        opt.step()
        metric.update(out, y)
    print(epoch, metric.compute())
    metric.reset()
