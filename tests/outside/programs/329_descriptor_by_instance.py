"""A descriptor checks what is assigned and stores it in a dictionary of its own by the instance; there is a new instance for each batch. 64 KiB a step. Pattern: descriptors that keep values by instance."""
EXPECTED = {"kind": "leak", "holder": ["values", "Checked"], "growing": True}

import torch
from torch import nn


class Checked:
    def __init__(self):
        self.values = {}

    def __get__(self, instance, owner):
        return self if instance is None else self.values[instance]

    def __set__(self, instance, value):
        if value.dim() != 2:
            raise ValueError("rows and columns")
        self.values[instance] = value  # <- here


class Sample:
    x = Checked()

    def __init__(self, x):
        self.x = x  # <- here


net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 128)).cuda()
opt = torch.optim.NAdam(net.parameters())
for step in range(80):
    sample = Sample(torch.randn(128, 128, device="cuda"))
    loss = (net(sample.x) - sample.x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
