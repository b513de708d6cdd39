"""Three averages of the weights with different rates are updated at each step. For a validation one of them is put into the model, with the trained weights aside for that time. Pattern: averages of weights after the fact."""
EXPECTED = {"kind": "innocent"}

from contextlib import contextmanager

import torch
from torch import nn


class Averages:
    def __init__(self, model, rates):
        self.model, self.rates = model, rates
        self.shadow = {rate: [p.detach().clone() for p in model.parameters()] for rate in rates}

    @torch.no_grad()
    def update(self):
        for rate, values in self.shadow.items():
            torch._foreach_lerp_(values, list(self.model.parameters()), 1 - rate)

    @contextmanager
    def of(self, rate):
        aside = [p.detach().clone() for p in self.model.parameters()]
        for parameter, value in zip(self.model.parameters(), self.shadow[rate], strict=True):
            parameter.data.copy_(value)
        yield self.model
        for parameter, value in zip(self.model.parameters(), aside, strict=True):
            parameter.data.copy_(value)


model = nn.Sequential(nn.Linear(90, 360), nn.SiLU(), nn.Linear(360, 360), nn.SiLU(), nn.Linear(360, 9)).cuda()
averages = Averages(model, (0.9, 0.99, 0.999))
opt = torch.optim.Adam(model.parameters())
for step in range(100):
    loss = model(torch.randn(64, 90, device="cuda")).logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    averages.update()
    if step % 20 == 19:
        for rate in averages.rates:
            with averages.of(rate) as net, torch.no_grad():
                net(torch.randn(256, 90, device="cuda"))
