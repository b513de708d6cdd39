"""A module registers the features of each step as a buffer with a name of its own, to save them in the checkpoint. Pattern: memory modules of continual learning."""
EXPECTED = {"kind": "leak", "holder": ["_buffers", "memory", "model"], "growing": True}

import torch
from torch import nn


class WithMemory(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 300), nn.ReLU())
        self.head = nn.Linear(300, 8)
        self.count = 0

    def forward(self, x):
        features = self.body(x)
        if self.training:
            self.register_buffer(f"memory_{self.count}", features.detach())  # <- here
            self.count += 1
        return self.head(features)


model = WithMemory().cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(60):
    x = torch.randn(256, 64, device="cuda")
    loss = model(x).logsumexp(1).mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
