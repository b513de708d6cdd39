"""Adjacency matrices are computed when a molecule comes for the first time and kept; there are 48, in a new order each epoch, one a step. Pattern: datasets that cache on the device."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Molecules:
    def __init__(self, number):
        self.number = number
        self.adjacency = {}

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        if index not in self.adjacency:
            positions = torch.randn(80, 3, device="cuda")
            self.adjacency[index] = torch.cdist(positions, positions).softmax(-1)
        return self.adjacency[index]


molecules = Molecules(48)
layer, out = nn.Linear(16, 16).cuda(), nn.Linear(16, 1).cuda()
opt = torch.optim.Adam([*layer.parameters(), *out.parameters()])
for epoch in range(4):
    for index in torch.randperm(len(molecules)).tolist():
        h = torch.randn(80, 16, device="cuda")
        h = torch.relu(layer(molecules[index] @ h))
        loss = out(molecules[index] @ h).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
