"""Every second step a batch goes into a queue of 64, which is full after 128 of 200 steps; its batches are used again. Pattern: rehearsal of old examples."""
EXPECTED = {"kind": "innocent"}

import random
from collections import deque

import torch
from torch import nn


class Rehearsal:
    def __init__(self):
        self.old = deque(maxlen=64)

    def mixed(self, step, x):
        if step % 2:
            self.old.append(x.clone())
        return torch.cat([x, random.choice(self.old)]) if self.old else x


rehearsal = Rehearsal()
net = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 100)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(200):
    x = rehearsal.mixed(step, torch.randn(128, 100, device="cuda"))
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
