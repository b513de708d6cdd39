"""Each step registers a function that could log its batch later, as functools.partial with the batch; the list of them is never emptied. 24 KiB a step. Pattern: deferred logging."""
EXPECTED = {"kind": "leak", "holder": ["pending", "partial"], "growing": True}

import functools

import torch
from torch import nn


def show(step, images, score):
    print(step, tuple(images.shape), score)


class Logger:
    def __init__(self, every):
        self.every, self.pending = every, []

    def later(self, *values):
        self.pending.append(functools.partial(show, *values))  # <- here

    def flush(self):
        for one in self.pending[:: self.every]:
            one()


net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
opt = torch.optim.AdamW(net.parameters())
logger = Logger(40)
for step in range(100):
    images = torch.rand(8, 3, 16, 16, device="cuda")
    loss = nn.functional.cross_entropy(net(images), torch.zeros(8, dtype=torch.long, device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    logger.later(step, images, loss.item())  # <- here
logger.flush()
