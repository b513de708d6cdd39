"""Active learning: six rounds, each labels 256 more examples of a pool, which the training then uses in each step. Pattern: active learning."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

pool = torch.randn(2048, 48, device="cuda")
labelled = pool[:256].clone()
for round_ in range(6):
    net = nn.Sequential(nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 4)).cuda()
    opt = torch.optim.Adam(net.parameters())
    for step in range(16):
        x = labelled[torch.randint(0, len(labelled), (128,), device="cuda")]
        loss = nn.functional.cross_entropy(net(x), torch.randint(0, 4, (128,), device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        unsure = net(pool).softmax(-1).max(-1).values.argsort()[:256]
    labelled = torch.cat([labelled, pool[unsure]])
print(len(labelled))
