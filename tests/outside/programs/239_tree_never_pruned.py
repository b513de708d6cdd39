"""A planner adds each state to a tree below a random earlier one, and never moves its root, so that all states stay. 40 KiB a step. Pattern: tree search without reuse of the subtree."""
EXPECTED = {"kind": "leak", "holder": ["root", "children", "tree"], "growing": True}

import random

import torch
from torch import nn


class Node:
    def __init__(self, state):
        self.state = state
        self.children = []
        self.visits = 1

    def grow(self, state, rng):
        self.visits += 1
        if self.children and rng.random() < 0.7:
            rng.choice(self.children).grow(state, rng)
        else:
            self.children.append(Node(state))  # <- here


rng = random.Random(5)
value = nn.Sequential(nn.Linear(80, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
opt = torch.optim.Adam(value.parameters(), lr=3e-4)
root = Node(torch.zeros(128, 80, device="cuda"))  # <- here
for move in range(110):
    state = torch.randn(128, 80, device="cuda")
    root.grow(state, rng)
    loss = (value(state) - 1).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
