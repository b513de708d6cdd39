"""The process may use 30 % of the card, set long ago for a shared machine; the training needs 60 %. Pattern: set_per_process_memory_fraction left in a script."""
EXPECTED = {"kind": "oom", "memory": "8G", "cause": ["limit"], "mentions": [["fraction"]]}

import torch
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.3, 0)
net = nn.Sequential(*[layer for _ in range(16) for layer in (nn.Linear(2048, 2048), nn.ReLU())]).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for rows in (1000, 2000, 4000, 8000, 20000):
    for _ in range(5):
        loss = net(torch.randn(rows, 2048, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
