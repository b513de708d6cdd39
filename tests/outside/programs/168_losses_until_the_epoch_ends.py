"""Detached losses stay on the GPU until the epoch ends and are then averaged, so that no step waits for the device. Right: cleared with each epoch."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
opt = torch.optim.Adam(model.parameters())
for epoch in range(4):
    losses = []
    for _ in range(40):
        x = torch.randn(256, 64, device="cuda")
        y = torch.randint(0, 10, (256,), device="cuda")
        each = nn.functional.cross_entropy(model(x), y, reduction="none")
        opt.zero_grad()
        each.mean().backward()
        opt.step()
        losses.append(each.detach())
    print(epoch, torch.cat(losses).mean().item())
