"""A loss remembers features in a mutable default argument, by the number of the call. Pattern: Python's best known trap."""
EXPECTED = {"kind": "leak", "holder": ["memo", "contrast"], "growing": True}

import torch
from torch import nn


def contrast(features, memo={}):  # <- here
    memo[len(memo)] = features.detach()  # <- here
    other = memo.get(len(memo) - 2)
    return features.norm(dim=1).mean() if other is None else (features - other).abs().mean()


net = nn.Sequential(nn.Linear(50, 400), nn.ELU(), nn.Linear(400, 256)).cuda()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for step in range(60):
    loss = contrast(net(torch.randn(200, 50, device="cuda")))
    opt.zero_grad()
    loss.backward()
    opt.step()
