"""The closure of each update is kept, so that a bad update could be repeated in a debugger. A closure has its batch and the newest outputs as cells. 96 KiB a step. Pattern: step(closure)."""
EXPECTED = {"kind": "leak", "holder": ["updates", "closure"], "growing": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(96, 192), nn.Softplus(), nn.Linear(192, 96)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
updates = []


def update(batch):
    noisy = batch + 0.1 * torch.randn_like(batch)

    def closure():
        optimizer.zero_grad()
        loss = (model(noisy) - batch).square().mean()
        loss.backward()
        return loss

    updates.append(closure)  # <- here
    return optimizer.step(closure).item()


for step in range(85):
    value = update(torch.randn(128, 96, device="cuda"))
print(value, len(updates))
