"""Activations of a step are in a dictionary of its own; for an average at the end only its values are kept: a view, which keeps the dictionary. 72 KiB a step. Pattern: dict views that outlive their dictionary."""
EXPECTED = {"kind": "leak", "holder": ["to_average", "activations"], "growing": True}

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(32, 96), nn.Linear(96, 48)

    def forward(self, x):
        activations = {}
        activations["first"] = self.first(x).relu()
        activations["second"] = self.second(activations["first"])
        return activations


net = Net().cuda()
opt = torch.optim.Adam(net.parameters())
to_average = []
for step in range(80):
    activations = net(torch.randn(128, 32, device="cuda"))
    loss = activations["second"].square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    activations = {name: value.detach() for name, value in activations.items()}
    to_average.append(activations.values())  # <- here
print(len(to_average))
