"""A deque of thirty batches of features estimates a mean in each step. Pattern: windows of features."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn


class Center(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.net = nn.Linear(40, 80)
        self.window = deque([], window)

    def forward(self, x):
        z = self.net(x)
        self.window.append(z.detach())
        return z - torch.cat(tuple(self.window)).mean(0)


model = Center(30).cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(100):
    loss = (model(torch.randn(64, 40, device="cuda")).square().mean(0) - 1).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
