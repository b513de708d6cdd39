"""A mean over the last 10,000 steps is shown; the window has the losses of each example with their graphs, and the training is shorter than the window. 8 KiB and a graph a step. Pattern: deque with a large maxlen."""
EXPECTED = {"kind": "leak", "holder": ["window"], "growing": True}

from collections import deque

import torch
from torch import nn

window = deque(maxlen=10_000)
net = nn.Sequential(nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(90):
    x = torch.randn(256, 32, device="cuda")
    each = (net(x) - x).square().mean(-1)
    loss = each.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    window.append(each)  # <- here
    if step % 30 == 29:
        print(float(sum(one.mean() for one in window)) / len(window))
