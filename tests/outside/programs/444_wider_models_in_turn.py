"""A scaling study trains one model after the other, each wider than the one before. A model is dropped when the next is made, and the losses are numbers. Pattern: scaling laws in one process."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

curve = []
for width in (64, 128, 192, 256, 384, 512, 640, 768):
    model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8)).cuda()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for step in range(15):
        loss = model(torch.randn(64, 64, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    curve.append((width, sum(losses[-5:]) / 5))
print(len(curve))
