"""Warm-up with plain SGD, then Adam takes over for the rest, whose two moments appear once. Right: state of the optimizer in use."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(120):
    if step == 40:
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    x = torch.randn(64, 512, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
