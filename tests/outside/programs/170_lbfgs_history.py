"""LBFGS keeps the last 25 directions and steps in its state; the history fills during the first half of the training. Right: bounded by history_size."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

torch.manual_seed(1)
net = nn.Sequential(nn.Linear(40, 200), nn.Tanh(), nn.Linear(200, 200), nn.Tanh(), nn.Linear(200, 1)).cuda()
x = torch.randn(500, 40, device="cuda")
y = torch.randn(500, 1, device="cuda")
opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2, history_size=25)


def closure():
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss


for step in range(60):
    loss = opt.step(closure)
print(loss.item())
