"""Meta-learning of a step size with one inner step: the next task should start at the network's weights, but starts at the adapted weights of the task before, which have the graphs of all earlier tasks. Pattern: MAML written by hand."""
EXPECTED = {"kind": "leak", "holder": ["fast"], "growing": True}

import torch
from torch import nn
from torch.func import functional_call

net = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 24)).cuda()
rate = torch.full((), -2.0, device="cuda", requires_grad=True)
opt = torch.optim.Adam([rate], lr=1e-2)
fast = dict(net.named_parameters())
for task in range(45):
    support, query = torch.randn(64, 24, device="cuda"), torch.randn(64, 24, device="cuda")
    inner = (functional_call(net, fast, (support,)) - support).square().mean()
    slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
    fast = {name: weight - rate.exp() * slope for (name, weight), slope in zip(fast.items(), slopes)}  # <- here
    outer = (functional_call(net, fast, (query,)) - query).square().mean()
    opt.zero_grad()
    outer.backward(retain_graph=True)  # <- here
    opt.step()
