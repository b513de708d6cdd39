"""At most eight asynchronous metrics are in flight; the oldest is waited for and dropped. Right: bounded, and full after eight steps."""
EXPECTED = {"kind": "innocent"}

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
pending = deque()
history = []


def spread(z):
    with torch.no_grad():
        return (z - z.mean(0)).norm(dim=1)


with ThreadPoolExecutor(2) as pool:
    for step in range(100):
        z = net(torch.randn(512, 128, device="cuda"))
        loss = z.square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        pending.append(pool.submit(spread, z.detach()))
        if len(pending) > 8:
            history.append(pending.popleft().result().mean().item())
print(len(history))
