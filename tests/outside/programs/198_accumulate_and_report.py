"""Accumulation over eight micro-batches; their losses are summed on the device for a report and start at zero again after each update. Right: reset with each update."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
reported = []
for update in range(25):
    total = torch.zeros((), device="cuda")
    opt.zero_grad()
    for micro in range(8):
        x = torch.randn(64, 256, device="cuda")
        loss = (net(x) - x).square().mean() / 8
        loss.backward()
        total += loss.detach()
    opt.step()
    reported.append(total.item())
print(reported[-1])
