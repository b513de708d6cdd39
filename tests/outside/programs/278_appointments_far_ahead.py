"""A simulated clock calls what is due at its time; for each step a report about the output is entered for a day later, and the simulation ends long before. 40 KiB with a graph a step. Pattern: schedulers of events."""
EXPECTED = {"kind": "leak", "holder": ["clock", "_queue", "queue"], "growing": True}

import sched

import torch
from torch import nn

now = 0.0
clock = sched.scheduler(lambda: now, lambda seconds: None)
DAY = 24 * 3600


def report(output):
    print("mean", output.mean().item())


net = nn.Sequential(nn.Linear(20, 80), nn.SiLU(), nn.Linear(80, 40)).cuda()
opt = torch.optim.RMSprop(net.parameters())
while now < 800:
    output = net(torch.randn(256, 20, device="cuda"))
    loss = (output.mean(0) - 1).square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    clock.enter(DAY, 1, report, (output,))  # <- here
    now += 10
    clock.run(blocking=False)
