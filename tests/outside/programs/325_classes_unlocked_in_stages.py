"""A curriculum unlocks new classes in five stages; the anchors of a class are made at its first use and kept in a dictionary. Memory rises in stairs until the last stage. Pattern: caches that warm up by stages."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(3)
anchors = {}
net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
for step in range(200):
    classes = 4 * (1 + min(4, step // 30))
    label = random.randrange(classes)
    anchor = anchors.setdefault(label, None)
    if anchor is None:
        anchor = anchors[label] = torch.randn(256, 64, device="cuda")
    x = anchor + 0.1 * torch.randn_like(anchor)
    loss = (net(x) - anchor).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
