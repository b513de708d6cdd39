"""The validation adds up loss tensors with their graphs, batch after batch, because nothing says no_grad. Pattern: memory runs out in the first validation."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["activations", "evaluation", "leak"], "mentions": [["no_grad", "item()", "detach"]]}

import torch
from torch import nn

net = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(512, 512), nn.GELU())], nn.Linear(512, 1)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)


def validate(batches=60):
    net.eval()
    total = 0
    for _ in range(batches):
        x = torch.randn(2048, 512, device="cuda")
        total = total + net(x).square().mean()
    net.train()
    return total / batches


for epoch in range(3):
    for _ in range(20):
        loss = net(torch.randn(2048, 512, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, float(validate()))
