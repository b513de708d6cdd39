"""The whole run is inside catch_warnings(record=True), to count warnings at the end. A check warns in each step, with the gradient as part of the warning. 64 KiB a step. Pattern: recorded warnings."""
EXPECTED = {"kind": "leak", "holder": ["caught"], "growing": True}

import warnings

import torch
from torch import nn


class SteepGradient(UserWarning):
    pass


net = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
with warnings.catch_warnings(record=True) as caught:  # <- here
    warnings.simplefilter("always")
    for step in range(85):
        loss = net(torch.randn(64, 128, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        warnings.warn(SteepGradient("step", step, net[0].weight.grad.clone()))  # <- here
        opt.step()
print(len(caught))
