"""Dynamic weight averaging: the weight of a task comes from its last two losses. All losses of all tasks are kept, with their graphs. Pattern: multi-task losses."""
EXPECTED = {"kind": "leak", "holder": ["history", "DynamicWeights", "weights"], "growing": True}

import torch
from torch import nn


class DynamicWeights:
    def __init__(self, tasks):
        self.history = {task: [] for task in tasks}

    def __call__(self, losses):
        total = 0.0
        for task, loss in losses.items():
            past = self.history[task]
            ratio = past[-1].detach() / past[-2].detach().clamp(min=1e-6) if len(past) > 1 else 1.0
            total = total + ratio * loss
            past.append(loss)  # <- here
        return total


TASKS = ("depth", "normals", "edges")
body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()).cuda()
heads = nn.ModuleDict({task: nn.Conv2d(16, 1, 1) for task in TASKS}).cuda()
opt = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=1e-3)
weights = DynamicWeights(TASKS)
for step in range(90):
    x = torch.randn(8, 3, 32, 32, device="cuda")
    features = body(x)
    losses = {task: heads[task](features).square().mean() for task in TASKS}
    opt.zero_grad()
    weights(losses).backward()
    opt.step()
