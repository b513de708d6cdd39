"""An own autograd function writes its result on ctx as an attribute, so that context, node and result refer to each other; nothing ever frees them. Pattern: PyTorch's note on extending autograd warns of it, and several reports of growing memory ended there."""
EXPECTED = {"kind": "leak", "holder": ["ctx", "Squash", "result"], "growing": True}

import torch
from torch import nn


class Squash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = torch.tanh(x)
        ctx.result = result  # <- here
        return result

    @staticmethod
    def backward(ctx, grad):
        return grad * (1 - ctx.result * ctx.result)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(256, 1024)
        self.second = nn.Linear(1024, 1)

    def forward(self, x):
        return self.second(Squash.apply(self.first(x)))  # <- here


net = Net().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(120):
    x = torch.randn(256, 256, device="cuda")
    loss = net(x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
