"""Slow weights are moved every five steps (Lookahead), and from the middle on an AveragedModel is updated. Pattern: SWA after Lookahead."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel

model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 5)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
slow = [weight.detach().clone() for weight in model.parameters()]
averaged = schedule = None
recent = []
for step in range(120):
    x, y = torch.randn(64, 64, device="cuda"), torch.randint(0, 5, (64,), device="cuda")
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    recent = [*recent[-9:], loss.detach()]
    if step % 5 == 4:
        with torch.no_grad():
            for weight, mine in zip(model.parameters(), slow):
                mine.lerp_(weight, 0.5)
                weight.copy_(mine)
    if step == 60:
        averaged, schedule = AveragedModel(model), SWALR(optimizer, 0.02)
    if averaged is not None and step % 6 == 0:
        averaged.update_parameters(model)
        schedule.step()
print(float(torch.stack(recent).mean()))
