"""A generator sends batches, about a tenth of which raise an error in the middle of the forward pass; the loop counts and skips them, and blocks are checkpointed. Pattern: robust loops."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Broken(ValueError):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4))

    def forward(self, x, bad):
        for number, block in enumerate(self.blocks):
            if bad and number == 2:
                raise Broken("values out of range")
            x = x + checkpoint(block, x, use_reentrant=False)
        return x


def stream(number):
    pick = random.Random(5)
    for _ in range(number):
        yield torch.randn(256, 128, device="cuda"), pick.random() < 0.1


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
skipped = 0
for x, bad in stream(130):
    try:
        loss = (net(x, bad) - x).square().mean()
    except Broken as error:
        skipped += 1
        message = str(error)
        continue
    opt.zero_grad()
    loss.backward()
    opt.step()
print("skipped", skipped, message)
