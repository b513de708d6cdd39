"""A dataset keeps decoded pictures on the GPU. Its key has the epoch in it, so that no later epoch finds a picture again. Six epochs of twenty steps. Pattern: a report of memory that rises with each epoch, ended by a wrong cache key."""
EXPECTED = {"kind": "leak", "holder": ["decoded", "cache"], "growing": True}

import torch
from torch import nn


class Pictures:
    def __init__(self, count):
        self.count = count
        self.decoded = {}

    def load(self, epoch, index):
        key = (epoch, index)
        if key not in self.decoded:
            raw = torch.randint(0, 256, (16, 3, 32, 32), dtype=torch.uint8)
            self.decoded[key] = raw.cuda().float().div_(255)  # <- here
        return self.decoded[key]


pictures = Pictures(20)
net = nn.Sequential(nn.Flatten(), nn.Linear(3072, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(6):
    for index in torch.randperm(pictures.count).tolist():
        x = pictures.load(epoch, index)
        loss = nn.functional.cross_entropy(net(x), torch.randint(0, 10, (16,), device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("epoch", epoch, loss.item())
