"""Sixteen micro-batches are summed up into one loss, and backward runs once, so that the graphs of all of them exist together. Pattern: gradient accumulation that saves no memory."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations", "leak"],
            "mentions": [["backward", "total", "batch", "rows", "micro"]]}

import torch
from torch import nn

net = nn.Sequential(*[nn.Sequential(nn.Linear(1024, 1024), nn.GELU()) for _ in range(12)]).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(10):
    total = 0
    for part in range(16):
        x = torch.randn(2560, 1024, device="cuda")
        total = total + net(x).square().mean() / 16
    total.backward()
    opt.step()
    opt.zero_grad()
