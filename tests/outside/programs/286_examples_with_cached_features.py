"""Thirty-six documents are objects; the features of each are computed at its first use and kept as a cached property. Two at random a step. Pattern: functools.cached_property."""
EXPECTED = {"kind": "innocent"}

import functools
import random

import torch
from torch import nn


class Document:
    def __init__(self, length):
        self.tokens = torch.arange(length) % 50

    @functools.cached_property
    def features(self):
        return nn.functional.one_hot(self.tokens, 50).float().cuda()


random.seed(3)
documents = [Document(random.randint(200, 400)) for _ in range(36)]
net = nn.Sequential(nn.Linear(50, 64), nn.ReLU(), nn.Linear(64, 50)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(140):
    x = torch.cat([one.features for one in random.sample(documents, 2)])
    loss = nn.functional.mse_loss(net(x), x)
    opt.zero_grad()
    loss.backward()
    opt.step()
