"""The weights of the last five epochs are kept on the GPU and averaged at the end. Right: bounded, and full after five epochs of twelve."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 700), nn.ReLU(), nn.Linear(700, 256)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
recent = deque(maxlen=5)
for epoch in range(12):
    for _ in range(10):
        x = torch.randn(64, 256, device="cuda")
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    recent.append({name: value.detach().clone() for name, value in net.state_dict().items()})
mean = {name: sum(one[name] for one in recent) / len(recent) for name in recent[0]}
net.load_state_dict(mean)
