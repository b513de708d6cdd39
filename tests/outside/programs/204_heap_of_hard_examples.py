"""The 64 hardest examples of the run stay on the device in a heap; a harder one replaces the easiest. Right: bounded and used in each step."""
EXPECTED = {"kind": "innocent"}

import heapq
import itertools

import torch
from torch import nn

net = nn.Sequential(nn.Linear(400, 200), nn.ReLU(), nn.Linear(200, 2)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
hardest, number = [], itertools.count()
for step in range(150):
    x = torch.randn(64, 400, device="cuda")
    y = torch.randint(0, 2, (64,), device="cuda")
    if len(hardest) >= 16:
        again = [entry[2] for entry in hardest[:16]]
        x = torch.cat([x, torch.stack(again)])
        y = torch.cat([y, torch.zeros(16, dtype=torch.long, device="cuda")])
    each = nn.functional.cross_entropy(net(x), y, reduction="none")
    opt.zero_grad()
    each.mean().backward()
    opt.step()
    for index in range(4):
        entry = (step * 0.01 + index, next(number), x[index].clone())
        if len(hardest) < 64:
            heapq.heappush(hardest, entry)
        else:
            heapq.heappushpop(hardest, entry)
