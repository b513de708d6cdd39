"""Every fourth step the averaged weights are put in for a validation; the weights in use are backed up on a stack and read from its end, but never taken off it. Pattern: EMA with store() and restore()."""
EXPECTED = {"kind": "leak", "holder": ["backups", "average", "Average"], "growing": True}

import torch
from torch import nn


class Average:
    def __init__(self, model, decay):
        self.decay, self.backups = decay, []
        self.shadow = [weight.detach().clone() for weight in model.parameters()]

    @torch.no_grad()
    def update(self, model):
        for mine, weight in zip(self.shadow, model.parameters()):
            mine.lerp_(weight, 1 - self.decay)

    @torch.no_grad()
    def put_in(self, model):
        self.backups.append([weight.detach().clone() for weight in model.parameters()])  # <- here
        for mine, weight in zip(self.shadow, model.parameters()):
            weight.copy_(mine)

    @torch.no_grad()
    def put_back(self, model):
        for mine, weight in zip(self.backups[-1], model.parameters()):
            weight.copy_(mine)


model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 100)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
average = Average(model, 0.99)
for step in range(120):
    x = torch.randn(64, 100, device="cuda")
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    average.update(model)
    if step % 4 == 3:
        average.put_in(model)
        with torch.no_grad():
            score = (model(x) - x).square().mean().item()
        average.put_back(model)
