"""Losses are summed on the device, detached, and the sums are read and reset every 25 steps; gradients are accumulated over four batches. Pattern: logging without a synchronisation in each step."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Sums:
    def __init__(self):
        self.reset()

    def reset(self):
        self.total, self.count, self.parts = torch.zeros((), device="cuda"), 0, []

    def add(self, loss, parts):
        self.total += loss.detach()
        self.count += 1
        self.parts.append(parts.detach())

    def read(self):
        return (self.total / self.count).item(), torch.stack(self.parts).mean(0).tolist()


net = nn.Sequential(nn.Linear(90, 180), nn.SiLU(), nn.Linear(180, 4)).cuda()
opt = torch.optim.AdamW(net.parameters())
sums = Sums()
for batch in range(400):
    parts = net(torch.randn(48, 90, device="cuda")).square().mean(0)
    loss = parts.mean()
    (loss / 4).backward()
    sums.add(loss, parts)
    if batch % 4 == 3:
        opt.step()
        opt.zero_grad()
    if batch % 100 == 99:
        print(*sums.read())
        sums.reset()
