"""Documents are packed into rows of 512 tokens: those that fit nowhere wait in a pool on the device, and the pool gets larger for most of the run, until the packer takes two rows a step whenever more than 150 wait. Right: bounded by the packer. Pattern: sequence packing."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(7)
ROOM = 512


def packed(pool):
    row, room = [], ROOM
    for document in sorted(pool, key=len, reverse=True):
        if len(document) <= room:
            row.append(document)
            room -= len(document)
    taken = {id(one) for one in row}
    pool[:] = [one for one in pool if id(one) not in taken]
    return torch.cat([*row, torch.zeros(room, dtype=torch.long, device="cuda")])


embed = nn.Embedding(300, 64).cuda()
head = nn.Linear(64, 300).cuda()
opt = torch.optim.AdamW([*embed.parameters(), *head.parameters()], lr=1e-3)
waiting = []
for step in range(140):
    waiting += [torch.zeros(random.randrange(100, 250), dtype=torch.long, device="cuda") for _ in range(5)]
    rows = [packed(waiting) for _ in range(2 if len(waiting) > 150 else 1)]
    tokens = torch.stack(rows)
    loss = nn.functional.cross_entropy(head(embed(tokens)).flatten(0, 1), tokens.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
