"""Instance discrimination: a bank with a row for each example, rows are written by index, and its similarities are computed in each step. Pattern: memory banks."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

bank = nn.functional.normalize(torch.randn(1500, 32, device="cuda"), dim=-1)
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.03)
for epoch in range(4):
    for rows in torch.randperm(1500).split(64):
        rows = rows.cuda()
        z = nn.functional.normalize(net(torch.randn(len(rows), 64, device="cuda")), dim=-1)
        loss = nn.functional.cross_entropy(z @ bank.t() / 0.1, rows)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            bank[rows] = nn.functional.normalize(bank[rows] + z, dim=-1)
