"""Self-play against a league of earlier selves: every six steps a copy of the policy joins; when there are eight, it takes the place of a random one. Right: bounded, and full after a third of the run. Pattern: leagues."""
EXPECTED = {"kind": "innocent"}

import copy
import random

import torch
from torch import nn

random.seed(6)
policy = nn.Sequential(nn.Linear(48, 256), nn.Tanh(), nn.Linear(256, 12)).cuda()
opt = torch.optim.Adam(policy.parameters(), lr=3e-4)
league = []
for step in range(150):
    if step % 6 == 0:
        member = copy.deepcopy(policy).requires_grad_(False).eval()
        if len(league) < 8:
            league.append(member)
        else:
            league[random.randrange(8)] = member
    board = torch.randn(256, 48, device="cuda")
    with torch.no_grad():
        answer = random.choice(league)(board)
    loss = (policy(board).log_softmax(-1) * answer.softmax(-1)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
