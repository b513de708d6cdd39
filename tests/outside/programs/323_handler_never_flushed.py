"""Log records are buffered until 5,000 are there or an error comes; neither happens. Their arguments are the outputs. 48 KiB and a graph a step. Pattern: logging.handlers.MemoryHandler with tensors as arguments."""
EXPECTED = {"kind": "leak", "holder": ["buffer", "memory", "MemoryHandler", "handler", "args"], "growing": True}

import logging
import logging.handlers

import torch
from torch import nn

log = logging.getLogger("training.outputs")
log.setLevel(logging.DEBUG)
log.propagate = False
memory = logging.handlers.MemoryHandler(5000, target=logging.NullHandler())  # <- here
log.addHandler(memory)  # <- here


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Linear(96, 24), nn.Linear(24, 96)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x)))


def epoch(model, opt, steps):
    for step in range(steps):
        x = torch.randn(128, 96, device="cuda")
        out = model(x)
        loss = (out - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.debug("step %d gave %s", step, out)  # <- here


model = Autoencoder().cuda()
opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for _ in range(4):
    epoch(model, opt, 20)
