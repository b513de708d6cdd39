"""A logging filter lets each message through once; what it remembers are the arguments too, which are the losses by class of each step. 32 KiB and a graph a step. Pattern: deduplicating log filters."""
EXPECTED = {"kind": "leak", "holder": ["seen", "Once"], "growing": True}

import logging

import torch
from torch import nn


class Once(logging.Filter):
    def __init__(self):
        super().__init__()
        self.seen = []

    def filter(self, record):
        key = (record.msg, record.args)
        if any(key is one for one in self.seen):
            return False
        self.seen.append(key)  # <- here
        return record.levelno >= logging.WARNING


log = logging.getLogger("losses")
log.setLevel(logging.DEBUG)
log.propagate = False
log.addHandler(logging.NullHandler())
log.addFilter(Once())
net = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(90):
    x = torch.randn(128, 64, device="cuda")
    errors = (net(x) - x).square()
    opt.zero_grad()
    errors.mean().backward()
    opt.step()
    log.debug("step %d: %s", step, errors)  # <- here
