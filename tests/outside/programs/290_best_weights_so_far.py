"""Early stopping: the weights are copied whenever the validation is better, and replace the copy of before; at the end they are loaded. Pattern: patience."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from torch import nn

random.seed(2)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)).cuda()
opt = torch.optim.Adam(net.parameters())
best, best_weights, patience = float("inf"), None, 6
for epoch in range(12):
    net.train()
    for _ in range(10):
        x = torch.randn(64, 64, device="cuda")
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        x = torch.randn(256, 64, device="cuda")
        score = (net(x) - x).square().mean().item() + random.random() / (1 + epoch)
    if score < best:
        best, patience = score, 6
        best_weights = {name: value.clone() for name, value in net.state_dict().items()}
    else:
        patience -= 1
        if not patience:
            break
net.load_state_dict(best_weights)
