"""After ten steps a validation runs with a batch that is fourteen times as large and without no_grad. Pattern: a validation that builds graphs."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["evaluation", "activations"],
            "mentions": [["no_grad", "inference_mode"]]}

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(512, 2048)
        self.blocks = nn.ModuleList(nn.Linear(2048, 2048) for _ in range(10))

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + torch.nn.functional.gelu(block(x))
        return x


def validate(net, data):
    net.eval()
    total = 0.0
    for part in data:
        total += net(part).square().mean().item()
    net.train()
    return total


net = Net().cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
for epoch in range(4):
    for step in range(10):
        loss = net(torch.randn(2048, 512, device="cuda")).square().mean()
        loss.backward()
        opt.step()
        opt.zero_grad()
    print(epoch, validate(net, (torch.randn(28_672, 512, device="cuda") for _ in range(2))))
