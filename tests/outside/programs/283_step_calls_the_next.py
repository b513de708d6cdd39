"""A training is written as a function that ends by calling itself for the next step: each call's variables live until all have returned. 80 KiB a step. Pattern: recursion instead of a loop, as in ported event handlers."""
EXPECTED = {"kind": "leak", "holder": ["logits", "x", "on_batch"], "growing": True}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(40, 100), nn.ReLU(), nn.Linear(100, 40)).cuda()
opt = torch.optim.Adam(net.parameters())


def on_batch(left):
    x = torch.randn(256, 40, device="cuda")  # <- here
    logits = net(x)  # <- here
    loss = nn.functional.mse_loss(logits, x)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if left:
        on_batch(left - 1)  # <- here


on_batch(90)
