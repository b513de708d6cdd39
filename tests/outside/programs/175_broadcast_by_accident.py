"""Predictions have the shape (N, 1) and targets (N,): the difference has N x N numbers. Pattern: a forum classic."""
EXPECTED = {"kind": "oom", "memory": "8G", "cause": ["activations"], "mentions": [["60,000", "60000", "pred - target", "all others", "one tensor", "single"]]}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(10):
    x = torch.randn(60000, 20, device="cuda")
    target = torch.randn(60000, device="cuda")
    pred = net(x)
    loss = ((pred - target) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
