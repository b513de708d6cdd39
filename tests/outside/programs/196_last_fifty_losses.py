"""The last fifty losses stay on the device in a bounded queue, and their mean is printed. Right: bounded, and detached."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn

net = nn.Sequential(nn.Linear(100, 300), nn.ReLU(), nn.Linear(300, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
recent = deque(maxlen=50)
for step in range(160):
    x = torch.randn(256, 100, device="cuda")
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 10, (256,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    recent.append(loss.detach())
    if step % 40 == 39:
        print(step, torch.stack(tuple(recent)).mean().item())
