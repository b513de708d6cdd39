"""Norms of the gradients of single examples, from torch.func, go into one tensor that grows by torch.cat in each step. 64 KiB a step. Pattern: traces of per-sample gradients."""
EXPECTED = {"kind": "leak", "holder": ["trace"], "growing": True}

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

net = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 1)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01)


def loss_of_one(weights, x, y):
    return (functional_call(net, weights, (x.unsqueeze(0),)).squeeze() - y).square()


per_sample = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
trace = torch.empty(0, 12, device="cuda")
for step in range(88):
    x, y = torch.randn(1400, 12, device="cuda"), torch.randn(1400, device="cuda")
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    gradients = per_sample(weights, x, y)
    trace = torch.cat([trace, gradients["0.weight"].norm(dim=1)])  # <- here
    loss = (net(x).squeeze(1) - y).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(tuple(trace.shape))
