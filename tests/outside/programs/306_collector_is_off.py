"""The garbage collector is off for speed, as many advise, and each step makes a small object that refers to itself through its children and has the outputs. 64 KiB a step. Pattern: gc.disable with reference cycles."""
EXPECTED = {"kind": "leak", "holder": ["Node", "Step", "parent", "children", "cycle"], "growing": True}

import gc

import torch
from torch import nn


class Step:
    def __init__(self, out):
        self.out = out
        self.children = [Part(self, name) for name in ("mean", "norm")]  # <- here

    def summary(self):
        return [child.value() for child in self.children]


class Part:
    def __init__(self, parent, name):
        self.parent, self.name = parent, name  # <- here

    def value(self):
        return getattr(self.parent.out, self.name)().item()


gc.disable()
net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 128)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for number in range(100):
    out = net(torch.randn(128, 32, device="cuda"))
    loss = out.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    Step(out.detach()).summary()  # <- here
