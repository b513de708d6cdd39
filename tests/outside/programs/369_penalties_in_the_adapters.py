"""Low-rank adapters note a penalty tensor at each forward for a regulariser that is read from the last entry only; the list on each adapter is never cleared. 32 KiB for each of four adapters a step, without a graph. Pattern: peft-like layers."""
EXPECTED = {"kind": "leak", "holder": ["notes", "Adapter"], "growing": True}

import torch
from torch import nn


class Adapter(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features, bias=False)
        self.notes = []

    def forward(self, x):
        low = self.down(x)
        self.notes.append(low.detach().abs())  # <- here
        return self.base(x) + self.up(low)


net = nn.Sequential(*[Adapter(nn.Linear(96, 96), 64) for _ in range(4)]).cuda()
opt = torch.optim.AdamW([weight for weight in net.parameters() if weight.requires_grad])
for step in range(80):
    x = torch.randn(128, 96, device="cuda")
    loss = (net(x) - x).square().mean()
    level = sum(layer.notes[-1].mean() for layer in net)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, float(level))
