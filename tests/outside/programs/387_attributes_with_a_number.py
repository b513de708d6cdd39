"""A module notes its pooled features of every step under an attribute with the step's number, to look at them in a debugger. 64 KiB a step. Pattern: setattr(self, f"features_{i}", x)."""
EXPECTED = {"kind": "leak", "holder": ["features_", "Classifier", "model"], "growing": True}

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
        self.head = nn.Linear(128, 10)
        self.calls = 0

    def forward(self, x):
        pooled = self.body(x)
        setattr(self, f"features_{self.calls}", pooled.detach())  # <- here
        self.calls += 1
        return self.head(pooled)


model = Classifier().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
target = torch.zeros(128, dtype=torch.long, device="cuda")
for step in range(80):
    loss = nn.functional.cross_entropy(model(torch.randn(128, 128, device="cuda")), target)
    loss.backward()
    opt.step()
    opt.zero_grad()
