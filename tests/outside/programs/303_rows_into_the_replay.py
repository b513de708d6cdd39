"""A replay memory has room for a million transitions. Each step puts the rows of 32 environments in, one by one; a row is a view of the whole observation. 64 KiB a step. Pattern: replay memories on the device."""
EXPECTED = {"kind": "leak", "holder": ["memory", "replay", "Replay"], "growing": True}

import random
from collections import namedtuple

import torch
from torch import nn

Transition = namedtuple("Transition", "before action after")


class Replay:
    def __init__(self, room):
        self.room, self.memory = room, []

    def push(self, *parts):
        if len(self.memory) < self.room:
            self.memory.append(Transition(*parts))  # <- here
        else:
            self.memory[random.randrange(self.room)] = Transition(*parts)  # <- here


replay = Replay(1_000_000)
net = nn.Sequential(nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-4)
before = torch.randn(32, 512, device="cuda")
for step in range(90):
    after = torch.randn(32, 512, device="cuda")
    actions = net(before).argmax(-1)
    for environment in range(32):
        replay.push(before[environment], actions[environment], after[environment])  # <- here
    chosen = random.sample(replay.memory, 32)
    loss = net(torch.stack([one.before for one in chosen])).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    before = after
