"""The batch grows by eight rows with each step, until the training ends; nothing is kept but a mean as a number. Pattern: batch size schedules."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
mean = 0.0
for step in range(110):
    x = torch.randn(64 + 8 * step, 128, device="cuda")
    out = net(x)
    loss = (out - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    mean += (loss.item() - mean) / (step + 1)
