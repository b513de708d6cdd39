"""For each batch a finalizer on the run is registered that would report its logits when the run ends. 25 KiB of logits a step. Pattern: weakref.finalize with large arguments."""
EXPECTED = {"kind": "leak", "holder": ["finalize", "_registry", "logits"], "growing": True}

import weakref

import torch
from torch import nn


class Run:
    """What a training belongs to."""


def report(step, logits):
    print(step, logits.shape)


run = Run()
model = nn.Linear(100, 50).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(90):
    x = torch.randn(128, 100, device="cuda")
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, torch.randint(0, 50, (128,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    weakref.finalize(run, report, step, logits.detach()).atexit = False  # <- here
