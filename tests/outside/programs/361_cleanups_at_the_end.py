"""Each step registers a cleanup with its batch on one ExitStack around the whole training, so that all batches are kept until the training ends. 96 KiB a step. Pattern: cleanups on a stack that is too far out."""
EXPECTED = {"kind": "leak", "holder": ["cleanups", "ExitStack", "_exit_callbacks"], "growing": True}

from contextlib import ExitStack

import torch
from torch import nn


def release(buffer):
    buffer.zero_()


def train(net, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with ExitStack() as cleanups:
        for step in range(steps):
            buffer = torch.rand(96, 256, device="cuda")
            cleanups.callback(release, buffer)  # <- here
            score = net(buffer)
            loss = nn.functional.cross_entropy(score, torch.zeros(96, dtype=torch.long, device="cuda"))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()


train(nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 8)).cuda(), 90)
