"""A debug helper notes in each step who called it, as frames; a frame has all variables of its function. The batch, the outputs, and more of each step: at least 96 KiB. Pattern: inspect.currentframe in logs."""
EXPECTED = {"kind": "leak", "holder": ["callers", "frame"], "growing": True}

import inspect

import torch
from torch import nn

callers = []


def trace(note):
    callers.append((note, inspect.currentframe().f_back))  # <- here


def train_step(net, opt, number):
    x = torch.randn(128, 64, device="cuda")
    hidden = net[1](net[0](x))
    loss = (net[2](hidden) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    trace(f"after step {number}")  # <- here
    return loss.item()


net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for number in range(80):
    train_step(net, opt, number)
