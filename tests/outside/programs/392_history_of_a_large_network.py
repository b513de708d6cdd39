"""A network of 256 MiB is fitted by LBFGS with the default history of 100: two vectors of the size of the network are kept for each step, and the card is full after some steps. Pattern: LBFGS on a network that is too large for it."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["optimizer"], "mentions": [["LBFGS", "history"]]}

# Weights 256 MiB, gradients 256 MiB; each step adds two flat vectors of 256 MiB to old_dirs and old_stps.
import torch
from torch import nn

net = nn.Sequential(*[nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.Tanh()) for _ in range(16)]).cuda()
x = torch.randn(64, 2048, device="cuda")
y = torch.randn(64, 2048, device="cuda")
opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=1, tolerance_grad=-1, tolerance_change=-1)


def closure():
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    loss.backward()
    return loss


for step in range(40):
    opt.step(closure)
