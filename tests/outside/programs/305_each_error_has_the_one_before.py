"""Bad batches raise an error that is remembered and given as the cause of the next one, so that the last error would tell the whole story. Each has its batch. 56 KiB every second step. Pattern: chained exceptions."""
EXPECTED = {"kind": "leak", "holder": ["last", "error", "cause", "BadBatch"], "growing": True}

import torch
from torch import nn


class BadBatch(Exception):
    def __init__(self, batch):
        super().__init__("bad batch")
        self.batch = batch


class Trainer:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(112, 56), nn.GELU(), nn.Linear(56, 112)).cuda()
        self.opt = torch.optim.Adam(self.net.parameters())
        self.last = None

    def check(self, number, x):
        if number % 2:
            raise BadBatch(x) from self.last  # <- here

    def step(self, number):
        x = torch.randn(128, 112, device="cuda")
        try:
            self.check(number, x)
        except BadBatch as error:
            self.last = error.with_traceback(None)  # <- here
        loss = (self.net(x) - x).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()


trainer = Trainer()
for number in range(120):
    trainer.step(number)
