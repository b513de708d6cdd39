"""A decorator remembers what a frozen text encoder gave, under the number of the batch. The number goes on over the epochs, so that nothing is ever found again. 384 KiB a step. Pattern: home-made memoisation."""
EXPECTED = {"kind": "leak", "holder": ["known", "encode", "remembered"], "growing": True, "raises_peak": True}

from functools import wraps

import torch
from torch import nn


def remembered(function):
    known = {}

    @wraps(function)
    def look_up(number, *args):
        if number not in known:
            known[number] = function(*args)  # <- here
        return known[number]

    return look_up


encoder = nn.Sequential(nn.Embedding(1000, 96), nn.Linear(96, 96)).cuda().eval()
model = nn.Sequential(nn.Linear(96, 192), nn.ReLU(), nn.Linear(192, 12)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)


@remembered
@torch.no_grad()
def encode(tokens):
    return encoder(tokens)


number = 0
for epoch in range(5):
    for batch in range(24):
        tokens = torch.randint(0, 1000, (32, 32), device="cuda")
        text = encode(number, tokens)
        loss = model(text.mean(1)).square().mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        number += 1
