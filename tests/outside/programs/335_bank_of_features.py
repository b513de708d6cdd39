"""Features of each step are joined to a bank of negatives, without a graph; nobody limits the bank. Pattern: a memory bank by torch.cat."""
EXPECTED = {"kind": "leak", "holder": ["bank", "memory"], "growing": True}

import torch
from torch import nn


class Contrast(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, dim))
        self.bank = torch.empty(0, dim, device="cuda")

    def forward(self, x):
        query = nn.functional.normalize(self.encoder(x), dim=-1)
        with torch.no_grad():
            key = nn.functional.normalize(self.encoder(x + 0.1 * torch.randn_like(x)), dim=-1)
        positive = (query * key).sum(-1, keepdim=True)
        negative = query @ self.bank[-256:].t()
        self.bank = torch.cat([self.bank, key])  # <- here
        labels = torch.zeros(len(x), dtype=torch.long, device=x.device)
        return nn.functional.cross_entropy(torch.cat([positive, negative], 1) / 0.1, labels)


model = Contrast().cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(90):
    loss = model(torch.randn(96, 128, device="cuda"))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
