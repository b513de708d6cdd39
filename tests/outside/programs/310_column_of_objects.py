"""Results go into a numpy array of objects, one row a step; the column with the embeddings has device tensors. 48 KiB a step. Pattern: object arrays as tables."""
EXPECTED = {"kind": "leak", "holder": ["table", "results"], "growing": True}

import numpy
import torch
from torch import nn


class Results:
    def __init__(self, rows):
        self.table = numpy.empty((rows, 3), dtype=object)

    def note(self, row, **values):
        for column, value in enumerate(values.values()):
            self.table[row, column] = value  # <- here


results = Results(88)
net = nn.Sequential(nn.Linear(40, 96), nn.ReLU(), nn.Linear(96, 40)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(88):
    x = torch.randn(128, 40, device="cuda")
    embedding = net[0](x)
    loss = (net[2](net[1](embedding)) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    results.note(step, step=step, loss=loss.item(), embedding=embedding.detach())  # <- here
