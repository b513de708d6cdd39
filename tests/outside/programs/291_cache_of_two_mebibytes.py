"""Encoded texts are cached up to two mebibytes; the one that was used longest ago goes first. Lengths differ. Pattern: caches that count bytes."""
EXPECTED = {"kind": "innocent"}

import random
from collections import OrderedDict

import torch
from torch import nn


class Cache:
    def __init__(self, limit):
        self.limit, self.used, self.entries = limit, 0, OrderedDict()

    def get(self, key, make):
        if key in self.entries:
            self.entries.move_to_end(key)
            return self.entries[key]
        value = make()
        self.entries[key] = value
        self.used += value.nbytes
        while self.used > self.limit:
            _, old = self.entries.popitem(last=False)
            self.used -= old.nbytes
        return value


random.seed(11)
cache = Cache(2 << 20)
encoder = nn.Embedding(500, 64).cuda().requires_grad_(False)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(180):
    text = random.randint(0, 400)
    length = 100 + (text * 37) % 200
    x = cache.get(text, lambda: encoder(torch.randint(0, 500, (length,), device="cuda")).clone())
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
