"""A coroutine smooths the losses that are sent to it, for the log. Its local value is made from losses that have a graph, so that the graphs of all steps stay. 550 KiB a step. Pattern: running averages of a loss that was not detached."""
EXPECTED = {"kind": "leak", "holder": ["value", "smooth", "smoother"], "growing": True, "bytes_per_step": 560_000, "raises_peak": True}

import torch
from torch import nn


def smoother(decay):
    value = torch.zeros((), device="cuda")
    while True:
        loss = yield value
        value = decay * value + (1 - decay) * loss  # <- here


model = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 8)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
smooth = smoother(0.95)
next(smooth)
for step in range(90):
    x = torch.randn(128, 64, device="cuda")
    loss = (model(x).square().mean(1) * torch.rand(128, device="cuda")).exp().mean()
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
    shown = smooth.send(loss)
print(tuple(shown.shape))
