"""Rollouts of different length are generated together: a dictionary has the states of those that run, new ones come in each step, and one is removed and trained on when it is done. About thirty run at a time, after a start with none. Right: those that are done leave. Pattern: continuous batching in RL."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(3)
cell = nn.GRUCell(32, 128).cuda()
head = nn.Linear(128, 32).cuda()
opt = torch.optim.Adam([*cell.parameters(), *head.parameters()], lr=1e-3)
running = {}
lengths = {}
number = 0
for step in range(150):
    for _ in range(random.choice((0, 1, 1, 2))):
        running[number] = [torch.zeros(8, 128, device="cuda")]
        lengths[number] = random.randrange(8, 50)
        number += 1
    with torch.no_grad():
        for states in running.values():
            states.append(cell(head(states[-1]), states[-1]))
    for done in [one for one, states in running.items() if len(states) >= lengths[one]]:
        states = torch.cat(running.pop(done))
        loss = (cell(head(states[:-8]), states[:-8]) - states[8:]).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
