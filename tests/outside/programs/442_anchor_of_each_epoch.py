"""Variance-reduced gradients: at the start of each epoch a copy of the model and its gradient over the whole set become the anchor, in place of the one before. Differences of the last eight steps are mixed. Pattern: SVRG with Anderson acceleration."""
EXPECTED = {"kind": "innocent"}

import copy
from collections import deque

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 2)).cuda()
parameters = list(model.parameters())
history = deque(maxlen=8)


def gradient(net, x):
    return torch.autograd.grad(net(x).square().mean(), list(net.parameters()))


for epoch in range(6):
    anchor = copy.deepcopy(model)
    whole = [torch.zeros_like(one) for one in parameters]
    for _ in range(10):
        for total, one in zip(whole, gradient(anchor, torch.randn(128, 64, device="cuda")), strict=True):
            total += one / 10
    for _ in range(15):
        x = torch.randn(32, 64, device="cuda")
        parts = zip(gradient(model, x), gradient(anchor, x), whole, strict=True)
        history.append([now - then + mean for now, then, mean in parts])
        with torch.no_grad():
            for parameter, *steps in zip(parameters, *history, strict=True):
                parameter -= 0.05 * torch.stack(steps).mean(0)
