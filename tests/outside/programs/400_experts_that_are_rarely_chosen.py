"""A mixture of 24 experts, of which each batch uses two, by a skewed distribution. Gradients and Adam's moments of an expert are made when it is used for the first time, the last ones late. Right: bounded by the experts. Pattern: sparse mixtures."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(5)
experts = nn.ModuleList(nn.Linear(96, 96) for _ in range(24)).cuda()
head = nn.Linear(96, 8).cuda()
opt = torch.optim.Adam([*experts.parameters(), *head.parameters()], lr=1e-3)
shares = [0.85**number for number in range(24)]
for step in range(130):
    x = torch.randn(64, 96, device="cuda")
    chosen = random.choices(range(24), shares, k=2)
    hidden = sum(experts[number](x) for number in chosen)
    loss = head(hidden).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
