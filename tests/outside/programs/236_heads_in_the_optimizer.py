"""A class-incremental learner has a new head for each task and drops the one before, but the optimizer still has all of them in its groups, with their moments. About 380 KiB a task of 8 steps. Pattern: add_param_group without an end."""
EXPECTED = {"kind": "leak", "holder": ["param_groups", "opt", "state"], "growing": True}

import torch
from torch import nn

body = nn.Sequential(nn.Linear(64, 256), nn.ReLU()).cuda()
opt = torch.optim.Adam(body.parameters(), lr=1e-3)
for task in range(16):
    head = nn.Linear(256, 120).cuda()  # <- here
    opt.add_param_group({"params": list(head.parameters()), "lr": 1e-2})  # <- here
    for _ in range(8):
        x = torch.randn(64, 64, device="cuda")
        loss = nn.functional.cross_entropy(head(body(x)), torch.randint(0, 120, (64,), device="cuda"))
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()  # <- here
