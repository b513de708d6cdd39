"""Before the training one large batch goes through the network, to check its shapes; the result stays in a global variable with its graph, beside a training with small batches. About 100 MiB, once. Pattern: sanity checks at the top of a script."""
EXPECTED = {"kind": "leak", "holder": ["checked"], "growing": False}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16)).cuda()
checked = net(torch.randn(8192, 256, device="cuda"))  # <- here
assert checked.shape == (8192, 16)
opt = torch.optim.Adam(net.parameters())
for step in range(60):
    x = torch.randn(64, 256, device="cuda")
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 16, (64,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
