"""The batches are kept sorted by difficulty with bisect, to look at the three hardest; easy ones are never taken out. 32 KiB a step. Pattern: sorted lists as leaderboards."""
EXPECTED = {"kind": "leak", "holder": ["ranking"], "growing": True}

import bisect

import torch
from torch import nn


def rank(ranking, difficulty, step, batch):
    bisect.insort(ranking, (difficulty, step, batch))  # <- here
    return ranking[-3:]


def train(steps=100):
    net = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 1)).cuda()
    opt = torch.optim.Adagrad(net.parameters())
    ranking = []
    for step in range(steps):
        x = torch.randn(128, 64, device="cuda")
        loss = net(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        rank(ranking, (step * 37) % 101, step, x)  # <- here


train()
