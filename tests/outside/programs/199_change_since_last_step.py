"""The change of the outputs since the previous step is added to the loss, so that the detached outputs of one step live into the next. Right: needed there, and only one of them."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
fixed = torch.randn(256, 64, device="cuda")
previous = None
for step in range(100):
    out = net(fixed + 0.1 * torch.randn_like(fixed))
    loss = (out - 1).square().mean()
    if previous is not None:
        loss = loss + 0.1 * (out - previous).abs().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    previous = out.detach()
