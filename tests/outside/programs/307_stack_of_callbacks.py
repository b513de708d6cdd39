"""What is to be done at the end of the run is put on an ExitStack in each step, with the features that it needs. 64 KiB a step. Pattern: ExitStack.callback inside the loop."""
EXPECTED = {"kind": "leak", "holder": ["stack", "at_end"], "growing": True}

import contextlib

import torch
from torch import nn


def report(step, features):
    return step, features.mean()


def train():
    net = nn.Sequential(nn.Linear(48, 128), nn.SiLU(), nn.Linear(128, 48)).cuda()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with contextlib.ExitStack() as at_end:
        for step in range(80):
            x = torch.randn(128, 48, device="cuda")
            features = net[1](net[0](x))
            loss = (net[2](features) - x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            at_end.callback(report, step, features.detach())  # <- here


train()
