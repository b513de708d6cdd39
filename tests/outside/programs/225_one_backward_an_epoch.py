"""The losses of all batches are summed and backward runs once an epoch, so that the graphs of all batches live together. Pattern: a question whose answer was to call backward for each batch."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["activations", "leak"], "mentions": [["backward", "graph"]]}

import torch
from torch import nn

net = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(768, 768), nn.ReLU())], nn.Linear(768, 4)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    total = 0
    opt.zero_grad()
    for batch in range(100):
        x = torch.randn(1024, 768, device="cuda")
        total = total + nn.functional.cross_entropy(net(x), torch.randint(0, 4, (1024,), device="cuda"))
    total.backward()
    opt.step()
