"""Losses and norms stay on the device until there are 25, are then read at once, and new lists follow. Pattern: loggers that avoid a synchronisation."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Logger:
    def __init__(self, every):
        self.every, self.pending, self.lines = every, {}, []

    def log(self, **values):
        for name, value in values.items():
            self.pending.setdefault(name, []).append(value.detach())
        if len(next(iter(self.pending.values()))) >= self.every:
            self.flush()

    def flush(self):
        self.lines.append({name: torch.stack(many).mean().item() for name, many in self.pending.items()})
        self.pending = {}


logger = Logger(25)
net = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)).cuda()
opt = torch.optim.AdamW(net.parameters())
for step in range(110):
    x = torch.randn(64, 32, device="cuda")
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    logger.log(loss=loss, norm=nn.utils.clip_grad_norm_(net.parameters(), 1.0))
    opt.step()
