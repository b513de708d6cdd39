"""Elastic weight consolidation with one running estimate: after each of eight tasks the importance and the old weights are replaced. Pattern: online EWC."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(48, 128), nn.ReLU(), nn.Linear(128, 10)).cuda()
importance, anchors = {}, {}
for task in range(8):
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    for step in range(12):
        x, y = torch.randn(64, 48, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
        loss = nn.functional.cross_entropy(net(x), y)
        for name, w in net.named_parameters():
            if name in anchors:
                loss = loss + (importance[name] * (w - anchors[name]).square()).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    for name, w in net.named_parameters():
        importance[name] = 0.9 * importance.get(name, 0) + w.grad.detach().square()
        anchors[name] = w.detach().clone()
