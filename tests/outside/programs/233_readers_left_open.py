"""For each document a generator is opened that yields windows of it; the training takes one window of each and keeps the generators, to go on later. 128 KiB a step. Pattern: suspended generators."""
EXPECTED = {"kind": "leak", "holder": ["readers", "document", "windows"], "growing": True}

import torch
from torch import nn


def windows(length, width):
    document = torch.randn(length, width, device="cuda")  # <- here
    for start in range(0, length, 64):
        yield document[start : start + 64]


def main():
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64)).cuda()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    readers = []
    for _ in range(70):
        reader = windows(512, 64)
        x = next(reader)
        readers.append(reader)  # <- here
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()


main()
