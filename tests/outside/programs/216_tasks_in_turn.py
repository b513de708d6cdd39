"""Six tasks share a body and have heads of their own; task after task joins the training, twenty steps apart, and Adam makes the state of a head at its first gradient. Right: memory rises in stairs to a bound."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

body = nn.Sequential(nn.Linear(128, 512), nn.ReLU()).cuda()
heads = nn.ModuleList(nn.Linear(512, 2000) for _ in range(6)).cuda()
opt = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=1e-3)
rng = random.Random(5)
for step in range(180):
    task = rng.randrange(min(6, 1 + step // 20))
    x = torch.randn(64, 128, device="cuda")
    loss = nn.functional.cross_entropy(heads[task](body(x)), torch.randint(0, 2000, (64,), device="cuda"))
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
