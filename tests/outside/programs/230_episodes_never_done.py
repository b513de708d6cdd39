"""An n-step buffer is emptied when an episode is done, and the environment has no end. 24 KiB a step. Pattern: buffers of agents in environments without a time limit."""
EXPECTED = {"kind": "leak", "holder": ["pending"], "growing": True}

from collections import deque

import torch
from torch import nn


class Agent:
    def __init__(self):
        self.q = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 6)).cuda()
        self.opt = torch.optim.Adam(self.q.parameters(), lr=1e-3)
        self.pending = deque()

    def observe(self, state, done):
        self.pending.append(state)  # <- here
        if done:
            self.pending.clear()

    def learn(self):
        states = torch.cat([self.pending[-1], self.pending[0]])
        loss = self.q(states).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


agent = Agent()
for step in range(130):
    done = False
    agent.observe(torch.randn(128, 48, device="cuda"), done)
    agent.learn()
