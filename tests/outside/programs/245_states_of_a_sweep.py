"""A sweep over learning rates notes for each trial its loss and the optimizer"s state_dict, whose moments are those on the device. 530 KiB a trial of 10 steps. Pattern: results of a sweep with everything in them."""
EXPECTED = {"kind": "leak", "holder": ["results"], "growing": True}

import torch
from torch import nn


def trial(rate):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)).cuda()
    opt = torch.optim.Adam(net.parameters(), lr=rate)
    for _ in range(10):
        x = torch.randn(64, 128, device="cuda")
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return {"rate": rate, "loss": loss.item(), "optimizer": opt.state_dict()}  # <- here


results = []
for k in range(14):
    results.append(trial(10 ** (-1 - k / 4)))  # <- here
print(min(results, key=lambda one: one["loss"])["rate"])
