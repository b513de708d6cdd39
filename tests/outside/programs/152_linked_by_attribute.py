"""Each output points to the one before it by a Python attribute, for a penalty on the change between two steps: the chain reaches back to the first step. Pattern: temporal consistency terms."""
EXPECTED = {"kind": "leak", "holder": ["previous", "latest"], "growing": True}

import torch
from torch import nn


class Smooth(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.core = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))
        self.latest = None

    def forward(self, x):
        out = self.core(x)
        keep = out.detach()
        keep.previous = self.latest  # <- here
        self.latest = keep  # <- here
        return out

    def penalty(self, out):
        before = self.latest.previous
        return 0.0 if before is None else (out - before).square().mean()


model = Smooth(200).cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for frame in range(64):
    x = torch.randn(300, 200, device="cuda")
    out = model(x)
    loss = (out - x).square().mean() + 0.1 * model.penalty(out)
    opt.zero_grad()
    loss.backward()
    opt.step()
