"""A coroutine smooths the logits of a training; it keeps all that was ever sent to it in a local list. Pattern: filters written as generators."""
EXPECTED = {"kind": "leak", "holder": ["seen", "smoother"], "growing": True}

import torch
import torch.nn as nn


def smoother(window):
    seen = []
    mean = None
    while True:
        value = yield mean
        seen.append(value)  # <- here
        mean = sum(seen[-window:]) / min(len(seen), window)


def fit(model, optimizer, steps):
    smooth = smoother(5)
    next(smooth)
    for i in range(steps):
        batch = torch.randn(512, 64, device="cuda")
        logits = model(batch)
        target = smooth.send(logits.detach())
        loss = (logits - target).square().mean() + logits.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 20 == 0:
            print(i, loss.item())


model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 100)).cuda()
fit(model, torch.optim.Adam(model.parameters()), 60)
