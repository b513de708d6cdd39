"""All pictures are moved to the device before the training, as 32-bit floats. Pattern: a beginner's report in which the answer was to move each batch instead."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["data", "input"]}

import torch
from torch import nn


class Everything:
    def __init__(self, shards):
        self.shards = [torch.zeros(500, 3, 224, 224, device="cuda") for _ in range(shards)]

    def batch(self, number):
        return self.shards[number % len(self.shards)][:32]


net = nn.Sequential(nn.Conv2d(3, 16, 7, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
everything = Everything(20)
for step in range(20):
    x = everything.batch(step)
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 10, (32,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
