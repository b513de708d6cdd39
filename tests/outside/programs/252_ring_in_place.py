"""A replay buffer allocated once, written by index. Pattern: off-policy agents."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Replay:
    def __init__(self, size, width):
        self.states = torch.empty(size, width, device="cuda")
        self.at = self.filled = 0

    def add(self, states):
        self.states[self.at : self.at + len(states)] = states
        self.at = (self.at + len(states)) % len(self.states)
        self.filled = min(len(self.states), self.filled + len(states))

    def sample(self, number):
        return self.states[torch.randint(0, self.filled, (number,), device="cuda")]


replay = Replay(4096, 32)
critic = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
opt = torch.optim.Adam(critic.parameters())
for step in range(100):
    replay.add(torch.randn(64, 32, device="cuda"))
    loss = critic(replay.sample(128)).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
