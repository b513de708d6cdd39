"""Each warm restart makes a new Adam and a new schedule; the schedules go into a list for a plot of the rates, and each keeps its optimizer with the state of all weights. Pattern: reports of memory that rises at restarts."""
EXPECTED = {"kind": "leak", "holder": ["schedules", "optimizer", "CosineAnnealingLR", "Adam"], "growing": True}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
schedules = []
for restart in range(9):
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=20)
    schedules.append(schedule)  # <- here
    for _ in range(20):
        x = torch.randn(128, 512, device="cuda")
        loss = (net(x) - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()  # <- here
        schedule.step()
    print(restart, loss.item())
