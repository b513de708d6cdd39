"""Gradient accumulation whose number of micro-batches grows from 1 to 12 during the training; the losses of an update are in a list, detached, which is made again for each update. Pattern: accumulation schedules."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 192), nn.Tanh(), nn.Linear(192, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for update in range(72):
    parts = 1 + update // 6
    losses = []
    opt.zero_grad()
    for _ in range(parts):
        x = torch.randn(96, 64, device="cuda")
        each = (net(x) - x).square().mean(-1)
        (each.mean() / parts).backward()
        losses.append(each.detach())
    opt.step()
    if update % 12 == 11:
        print(update, float(torch.cat(losses).mean()))
