"""Each parameter gets a list as an attribute, with a copy of its gradient of every step, for a test of their direction that reads the last two. About 50 KiB a step. Pattern: Python attributes on parameters."""
EXPECTED = {"kind": "leak", "holder": ["past"], "growing": True}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(48, 160), nn.GELU(), nn.Linear(160, 32)).cuda()
for weight in net.parameters():
    weight.past = []
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for step in range(90):
    x = torch.randn(32, 48, device="cuda")
    loss = nn.functional.mse_loss(net(x), x[:, :32])
    opt.zero_grad()
    loss.backward()
    for weight in net.parameters():
        weight.past.append(weight.grad.clone())  # <- here
    turned = sum((w.past[-1] * w.past[-2]).sum() for w in net.parameters()) if step else 0
    opt.step()
