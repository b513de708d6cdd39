"""Each step registers a function that would write its scores when the process ends. 32 KiB a step. Pattern: atexit.register inside the loop."""
EXPECTED = {"kind": "leak", "holder": ["atexit", "write", "scores"], "growing": True}

import atexit

import torch
from torch import nn


def write(step, scores):
    pass


net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(90):
    scores = net(torch.randn(128, 64, device="cuda"))
    loss = scores.logsumexp(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    atexit.register(write, step, scores.detach())  # <- here
