"""Attention maps of each step are kept on the module for a plot, until the card is full. Pattern: models that keep their last attention in a list."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["leak"], "holder": ["maps"]}

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim=128):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.maps = []

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.transpose(1, 2) / 11).softmax(-1)
        self.maps.append(weights.detach())  # <- here
        return weights @ v


layer, head = Attention().cuda(), nn.Linear(128, 2).cuda()
opt = torch.optim.Adam([*layer.parameters(), *head.parameters()], lr=1e-3)
for step in range(200):
    x = torch.randn(16, 512, 128, device="cuda")
    loss = nn.functional.cross_entropy(head(layer(x).mean(1)), torch.randint(0, 2, (16,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
