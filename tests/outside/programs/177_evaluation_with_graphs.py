"""Training fits; the evaluation has four times the rows and was written without torch.no_grad, so that it keeps all activations. Pattern: the most frequent cause of errors in a validation."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations", "evaluation"], "mentions": [["no_grad"]]}

import torch
from torch import nn

net = nn.Sequential(*[layer for _ in range(24) for layer in (nn.Linear(1024, 1024), nn.ReLU())], nn.Linear(1024, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def validate():
    net.eval()
    total = 0.0
    for _ in range(3):
        total += net(torch.randn(40000, 1024, device="cuda")).argmax(1).float().mean().item()
    net.train()
    return total


for epoch in range(3):
    for _ in range(10):
        loss = net(torch.randn(4000, 1024, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, validate())
