"""A table of item vectors gets twice the room whenever new items do not fit, as lists do; about 40 new items come with each step, fewer and fewer later. It is trained by hand. Right: it ends with the 2,000 items that there are. Pattern: dynamic embedding tables."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn


class Table:
    def __init__(self, width):
        self.rows = torch.zeros(64, width, device="cuda")
        self.places = {}

    def look_up(self, items):
        for item in items:
            if item not in self.places:
                if len(self.places) == len(self.rows):
                    larger = torch.zeros(2 * len(self.rows), self.rows.shape[1], device="cuda")
                    larger[: len(self.rows)] = self.rows
                    self.rows = larger
                self.places[item] = len(self.places)
        return torch.tensor([self.places[item] for item in items], device="cuda")


random.seed(2)
table = Table(64)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for step in range(140):
    places = table.look_up([random.randrange(2000) for _ in range(48)])
    vectors = table.rows[places].requires_grad_()
    loss = net(vectors).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    table.rows[places] -= 0.1 * vectors.grad
