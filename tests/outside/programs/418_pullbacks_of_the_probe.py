"""A probe measures how sensitive the features are: torch.func.vjp at each step. The functions that it returns are kept for a plot at the end, and each retains the graph of its step. Pattern: questions about torch.func.vjp and memory."""
EXPECTED = {"kind": "leak", "holder": ["pullbacks"], "growing": True, "bytes_per_step": 1_179_648, "raises_peak": True}

import torch
from torch import nn
from torch.func import vjp

body = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()).cuda()
head = nn.Linear(512, 10).cuda()
opt = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
pullbacks = []
for step in range(80):
    x = torch.randn(128, 128, device="cuda")
    y = torch.randint(0, 10, (128,), device="cuda")
    features, pull = vjp(body, torch.randn(256, 128, device="cuda"))
    pullbacks.append(pull)  # <- here
    loss = nn.functional.cross_entropy(head(body(x)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
print(len(pullbacks))
