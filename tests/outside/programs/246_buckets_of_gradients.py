"""Gradients are joined into one bucket a step, as data parallel training does, and each bucket is appended to those of before; only the newest is read. 98 KiB a step. Pattern: hand-written reduction of gradients."""
EXPECTED = {"kind": "leak", "holder": ["buckets"], "growing": True}

import torch
from torch import nn


class Reducer:
    def __init__(self, module):
        self.module = module
        self.buckets = []

    def reduce(self, world=1):
        grads = [p.grad for p in self.module.parameters()]
        self.buckets.append(torch.cat([g.flatten() for g in grads]))  # <- here
        flat, at = self.buckets[-1].div_(world), 0
        for g in grads:
            g.copy_(flat[at : at + g.numel()].view_as(g))
            at += g.numel()


net = nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 96)).cuda()
reducer = Reducer(net)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(90):
    x = torch.randn(64, 96, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    reducer.reduce()
    opt.step()
