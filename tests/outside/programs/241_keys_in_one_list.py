"""The keys of a contrastive loss are put into a list by addition, and the last eight are used. 64 KiB a step. Pattern: MoCo queues written by hand."""
EXPECTED = {"kind": "leak", "holder": ["keys"], "growing": True}

import torch
from torch import nn

query, key = nn.Linear(96, 64).cuda(), nn.Linear(96, 64).cuda().requires_grad_(False)
opt = torch.optim.SGD(query.parameters(), lr=0.03)
keys = []
for step in range(100):
    x = torch.randn(256, 96, device="cuda")
    q = nn.functional.normalize(query(x), dim=-1)
    with torch.no_grad():
        k = nn.functional.normalize(key(x + 0.1), dim=-1)
    others = torch.cat([k, *keys[-8:]])
    loss = nn.functional.cross_entropy(q @ others.t() / 0.07, torch.arange(256, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    keys = keys + [k]  # <- here
    for slow, fast in zip(key.parameters(), query.parameters()):
        slow.lerp_(fast.detach(), 0.01)
