"""Meta-learning with one inner step: the next task should start at the meta weights, but starts at the adapted weights of the task before, which have the graphs of all earlier tasks. Pattern: MAML written by hand."""
EXPECTED = {"kind": "leak", "holder": ["fast"], "growing": True}

import torch
from torch import nn
from torch.func import functional_call

net = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 24)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
fast = dict(net.named_parameters())
for task in range(45):
    support, query = torch.randn(64, 24, device="cuda"), torch.randn(64, 24, device="cuda")
    inner = (functional_call(net, fast, (support,)) - support).square().mean()
    slopes = torch.autograd.grad(inner, list(fast.values()), create_graph=True)
    fast = {name: weight - 0.1 * slope for (name, weight), slope in zip(fast.items(), slopes)}  # <- here
    outer = (functional_call(net, fast, (query,)) - query).square().mean()
    opt.zero_grad()
    slopes = torch.autograd.grad(outer, list(net.parameters()), retain_graph=True)  # <- here
    for weight, slope in zip(net.parameters(), slopes):
        weight.grad = slope.detach()
    opt.step()
