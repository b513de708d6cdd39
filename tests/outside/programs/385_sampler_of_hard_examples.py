"""A sampler prefers examples with a high loss. It keeps the latest loss of each example by its index, as rows of the loss vector, with the graph. The set has 50,000 examples, of which the run sees 3,200. Pattern: importance sampling by loss."""
EXPECTED = {"kind": "leak", "holder": ["losses", "HardSampler", "sampler"], "growing": True}

import random

import torch
from torch import nn


class HardSampler:
    def __init__(self, examples):
        self.examples = examples
        self.losses = {}

    def update(self, indices, losses):
        for index, loss in zip(indices, losses):
            self.losses[index] = loss  # <- here

    def draw(self, size):
        return random.sample(range(self.examples), size)


random.seed(1)
sampler = HardSampler(50_000)
net = nn.Sequential(nn.Linear(40, 96), nn.Tanh(), nn.Linear(96, 6)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for step in range(100):
    indices = sampler.draw(32)
    x = torch.randn(32, 40, device="cuda")
    y = torch.zeros(32, dtype=torch.long, device="cuda")
    losses = nn.functional.cross_entropy(net(x), y, reduction="none")
    opt.zero_grad()
    losses.mean().backward()
    opt.step()
    sampler.update(indices, losses)
