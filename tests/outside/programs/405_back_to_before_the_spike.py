"""Every four steps the weights and moments are copied on the device, so that a spike of the loss can be undone; there are at most ten copies, the oldest goes first, and after a spike all newer ones go too. Right: bounded. Pattern: rollback after divergence."""
EXPECTED = {"kind": "innocent"}

import copy

import torch
from torch import nn


class Rollback:
    KEEP = 10

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.snapshots = model, optimizer, []

    def save(self, step):
        self.snapshots.append((step, copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.optimizer.state_dict())))
        while len(self.snapshots) > self.KEEP:
            self.snapshots.pop(0)

    def restore(self):
        step, weights, moments = self.snapshots[len(self.snapshots) // 2]
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict(moments)
        self.snapshots = [one for one in self.snapshots if one[0] <= step]


net = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
rollback = Rollback(net, opt)
for step in range(140):
    if step % 4 == 0:
        rollback.save(step)
    x = torch.randn(64, 64, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step in (70, 101):
        rollback.restore()
