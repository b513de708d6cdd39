"""A recurrent agent plays in twenty-four environments, eight of them a step; each has its last hidden state in a dictionary, detached. Pattern: recurrent policies."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(4)
cell, policy = nn.GRUCell(16, 128).cuda(), nn.Linear(128, 4).cuda()
opt = torch.optim.Adam([*cell.parameters(), *policy.parameters()])
hidden = {}
for step in range(100):
    chosen = random.sample(range(24), 8)
    before = torch.stack([hidden[one] if one in hidden else torch.zeros(128, device="cuda") for one in chosen])
    losses = []
    for _ in range(5):
        before = cell(torch.randn(8, 16, device="cuda"), before)
        losses.append(policy(before).log_softmax(-1)[:, 0].mean())
    loss = -torch.stack(losses).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    for one, state in zip(chosen, before.detach().unbind()):
        hidden[one] = state.clone()
