"""Five tasks are trained in turn, each for an epoch of 12 steps, in four rounds. In the first round each task gets its head, its optimizer and its average of the features. They are used again in each round. Pattern: multi-task training by epochs."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

TASKS = ("tags", "chunks", "names", "roles", "links")
trunk = nn.Sequential(nn.Embedding(2000, 128), nn.Linear(128, 256), nn.ReLU()).cuda()
heads, optimizers, means = {}, {}, {}
for turn in range(4):
    for task in TASKS:
        if task not in heads:
            heads[task] = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 40)).cuda()
            optimizers[task] = torch.optim.AdamW([*trunk.parameters(), *heads[task].parameters()], lr=1e-3)
            means[task] = torch.zeros(16, 32, 256, device="cuda")
        for _ in range(12):
            features = trunk(torch.randint(0, 2000, (16, 32), device="cuda"))
            means[task] = 0.9 * means[task] + 0.1 * features.detach()
            loss = heads[task](features + 0.01 * means[task]).logsumexp(-1).mean()
            optimizers[task].zero_grad()
            loss.backward()
            optimizers[task].step()
