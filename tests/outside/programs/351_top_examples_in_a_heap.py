"""The 16 hardest examples so far are in a heap, detached, for a picture at the end; a harder one replaces the easiest. Pattern: hard examples by heapq."""
EXPECTED = {"kind": "innocent"}

import heapq
import itertools

import torch
from torch import nn

net = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 24 * 24, 10)).cuda()
opt = torch.optim.Adam(net.parameters())
hardest, number = [], itertools.count()
for step in range(100):
    x = torch.rand(32, 1, 24, 24, device="cuda")
    each = nn.functional.cross_entropy(net(x), torch.zeros(32, dtype=torch.long, device="cuda"), reduction="none")
    opt.zero_grad()
    each.mean().backward()
    opt.step()
    entry = (each.max().item() + 0.01 * step, next(number), x[each.argmax().item() % 32].detach().clone())
    if len(hardest) < 16:
        heapq.heappush(hardest, entry)
    else:
        heapq.heappushpop(hardest, entry)
print(len(hardest))
