"""A monitor is extended in each step by wrapping it into a new function that also knows the newest features: a chain of closures. Pattern: decorators that are applied again and again."""
EXPECTED = {"kind": "leak", "holder": ["monitor", "compare", "reference"], "growing": True}

import torch
from torch import nn

monitor = None


def extended(inner, reference):
    def compare(features):  # <- here
        here = float((features - reference).abs().max())
        return here if inner is None or here > 0 else inner(features)

    return compare


net = nn.Sequential(nn.Linear(64, 512), nn.ReLU())
head = nn.Linear(512, 3)
net.cuda(), head.cuda()
opt = torch.optim.Adam([*net.parameters(), *head.parameters()])
for step in range(50):
    x = torch.randn(200, 64, device="cuda")
    f = net(x)
    loss = head(f).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    monitor = extended(monitor, f.detach())  # <- here
