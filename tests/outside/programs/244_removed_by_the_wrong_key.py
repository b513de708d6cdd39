"""Features of the last ten steps are kept by step; older ones are removed by their number as text, which is no key. 32 KiB a step. Pattern: caches whose eviction never finds its entry."""
EXPECTED = {"kind": "leak", "holder": ["recent"], "growing": True}

import torch
from torch import nn


def remember(recent, step, features):
    recent[step] = features  # <- here
    recent.pop(str(step - 10), None)


recent = {}
net, head = nn.Linear(32, 64).cuda(), nn.Linear(64, 2).cuda()
opt = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
for step in range(140):
    x = torch.randn(128, 32, device="cuda")
    features = net(x).relu()
    loss = nn.functional.cross_entropy(head(features), torch.randint(0, 2, (128,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    remember(recent, step, features.detach())  # <- here
