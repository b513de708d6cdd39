"""A fixed-point layer needs more iterations the better it is trained, from 2 to 30; its iterates are in a list with their graphs, which is local to the forward. Pattern: adaptive depth."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class FixedPoint(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix, self.read = nn.Linear(width, width), nn.Linear(width, width)
        self.rounds = 2

    def forward(self, x):
        z, iterates = torch.zeros_like(x), []
        for _ in range(self.rounds):
            z = torch.tanh(self.mix(z) + x)
            iterates.append(z)
        return self.read(sum(iterates) / len(iterates))


layer = FixedPoint(96).cuda()
opt = torch.optim.Adam(layer.parameters())
for step in range(112):
    layer.rounds = 2 + step // 4
    x = torch.randn(128, 96, device="cuda")
    loss = (layer(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
