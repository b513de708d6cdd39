"""A function yields the loss of each step; the caller makes a list of all of them, to plot it. Pattern: losses = list(train(...))."""
EXPECTED = {"kind": "leak", "holder": ["losses", "list", "train", "loss"], "growing": True}

import torch
from torch import nn


def train(net, opt, steps):
    for _ in range(steps):
        x = torch.randn(100, 50, device="cuda")
        loss = (net(x) - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        yield loss


def main():
    net = nn.Sequential(nn.Linear(50, 100), nn.ReLU(), nn.Linear(100, 50)).cuda()
    opt = torch.optim.Adam(net.parameters())
    losses = []
    for loss in train(net, opt, 90):
        losses += [loss]  # <- here
    print(losses[0].item(), losses[-1].item())


main()
