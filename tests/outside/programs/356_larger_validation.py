"""The validation has batches that are 16 times as large, and runs with gradients on. Pattern: validation without no_grad and with another batch size."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations", "evaluation"],
            "mentions": [["no_grad", "batch", "rows"]]}

import torch
from torch import nn

net = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(10)]).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
for epoch in range(3):
    net.train()
    for _ in range(8):
        loss = net(torch.randn(2048, 2048, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    total = 0.0
    for _ in range(2):
        total += net(torch.randn(32768, 2048, device="cuda")).square().mean().item()
    print(epoch, total)
