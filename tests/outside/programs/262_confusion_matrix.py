"""A confusion matrix and sums of features are updated in place in each step. Pattern: streaming statistics on the device."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Statistics:
    def __init__(self, classes, width):
        self.matrix = torch.zeros(classes, classes, device="cuda")
        self.sums = torch.zeros(classes, width, device="cuda")
        self.count = 0

    @torch.no_grad()
    def update(self, features, predicted, labels):
        self.matrix.index_put_((labels, predicted), torch.ones_like(labels, dtype=torch.float), accumulate=True)
        self.sums = self.sums + torch.nn.functional.one_hot(labels, len(self.sums)).float().t() @ features
        self.count += len(labels)


statistics = Statistics(10, 64)
body, head = nn.Linear(32, 64).cuda(), nn.Linear(64, 10).cuda()
opt = torch.optim.Adam([*body.parameters(), *head.parameters()])
for step in range(90):
    x, labels = torch.randn(128, 32, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
    features = body(x)
    logits = head(features)
    loss = nn.functional.cross_entropy(logits, labels)
    opt.zero_grad()
    loss.backward()
    opt.step()
    statistics.update(features.detach(), logits.argmax(1), labels)
