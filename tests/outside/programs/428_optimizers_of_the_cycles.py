"""Cyclic training: each cycle of 12 steps has an optimizer of its own. A dictionary of the cycles keeps all of them for the report, and with them their averages of the gradients: 2.1 MiB a cycle. Pattern: optimizers made again in the loop."""
EXPECTED = {"kind": "leak", "holder": ["cycles"], "growing": True, "bytes_per_step": 175_000, "raises_peak": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
cycles = {}
for cycle in range(14):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3 / (cycle + 1))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
    losses = []
    for step in range(12):
        x = torch.randn(64, 256, device="cuda")
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        schedule.step()
        losses.append(loss.item())
    cycles[f"cycle {cycle}"] = {"schedule": schedule, "mean": sum(losses) / len(losses)}  # <- here
