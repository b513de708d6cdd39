"""The weights of three task losses follow their smoothed values, as in dynamic weight averaging. The dictionary of smoothed losses is updated with losses that were not detached: the nodes of the graphs of all steps stay. Pattern: adaptive loss weights, and memory that grows."""
EXPECTED = {"kind": "leak", "holder": ["smoothed"], "growing": True}

import torch
from torch import nn

TASKS = ("depth", "normals", "classes")
trunk = nn.Sequential(nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 24, 3, padding=1), nn.ReLU()).cuda()
heads = nn.ModuleDict({name: nn.Conv2d(24, 4, 1) for name in TASKS}).cuda()
opt = torch.optim.Adam([*trunk.parameters(), *heads.parameters()], lr=1e-3)
smoothed = dict.fromkeys(TASKS, 1.0)
for step in range(70):
    images = torch.randn(4, 3, 48, 48, device="cuda")
    features = trunk(images)
    losses = {name: head(features).abs().mean() for name, head in heads.items()}
    weights = {name: float(smoothed[name]) + 1e-3 for name in TASKS}
    total = sum(losses[name] / weights[name] for name in TASKS)
    opt.zero_grad()
    total.backward()
    opt.step()
    for name in TASKS:
        smoothed[name] = 0.9 * smoothed[name] + 0.1 * losses[name]  # <- here
