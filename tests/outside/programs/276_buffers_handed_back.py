"""Work buffers hand themselves back to a free list when they are deleted. The next buffer is taken from the list only if its size fits exactly, and sizes rise by one row each time. 32 KiB and more a step. Pattern: object pools with __del__."""
EXPECTED = {"kind": "leak", "holder": ["free", "Pool", "pool", "Lease"], "growing": True}

import torch
from torch import nn


class Pool:
    def __init__(self):
        self.free = []

    def lend(self, rows):
        for index, one in enumerate(self.free):
            if len(one) == rows:
                return Lease(self, self.free.pop(index))
        return Lease(self, torch.empty(rows, 64, device="cuda"))  # <- here


class Lease:
    def __init__(self, pool, data):
        self.pool, self.data = pool, data

    def __del__(self):
        self.pool.free.append(self.data)  # <- here


pool = Pool()
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(90):
    lease = pool.lend(128 + step)
    lease.data.normal_()
    loss = net(lease.data).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    del lease
