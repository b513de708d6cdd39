"""Transitions go into a deque of 200. Their errors, with the graphs of the networks that they were computed by, go into a dictionary beside it by number, and are never dropped. Pattern: prioritised replay by hand."""
EXPECTED = {"kind": "leak", "holder": ["errors", "memory", "Memory"], "growing": True, "raises_peak": True}

import random
from collections import deque

import torch
from torch import nn


class Memory:
    def __init__(self, room):
        self.steps = deque(maxlen=room)
        self.errors = {}
        self.number = 0

    def add(self, transition, error):
        self.steps.append(transition)
        self.errors[self.number] = error  # <- here
        self.number += 1

    def sample(self, count):
        return [torch.stack(part) for part in zip(*random.sample(list(self.steps), count), strict=True)]


q = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 4)).cuda()
opt = torch.optim.Adam(q.parameters(), lr=1e-4)
memory = Memory(200)
state = torch.randn(64, 32, device="cuda")
for step in range(150):
    value = q(state).max(-1).values
    after = torch.randn(64, 32, device="cuda")
    with torch.no_grad():
        target = 0.9 * q(after).max(-1).values
    memory.add((state, after), (value - target).abs().mean())
    state = after
    if step >= 16:
        before, following = memory.sample(8)
        loss = (q(before).max(-1).values - 0.9 * q(following).max(-1).values.detach()).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
