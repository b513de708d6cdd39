"""A running mean of features, for centring, is updated outside of no_grad; it is a plain attribute, and each step's mean has the graph of all before. Pattern: EMA statistics without detach."""
EXPECTED = {"kind": "leak", "holder": ["mean"], "growing": True}

import torch
from torch import nn


class Centred(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(40, 160), nn.GELU(), nn.Linear(160, 160))
        self.out = nn.Linear(160, 40)
        self.mean = torch.zeros(160, device="cuda")

    def forward(self, x):
        features = self.body(x)
        self.mean = 0.9 * self.mean + 0.1 * features.mean(0)  # <- here
        return self.out(features - self.mean.detach())


model = Centred().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(85):
    x = torch.randn(120, 40, device="cuda")
    loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        print(step, float(loss))
