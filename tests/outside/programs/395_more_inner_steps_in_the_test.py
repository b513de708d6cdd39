"""Meta-learning trains with two inner steps; the test after the epoch uses sixty, and still with create_graph, so that all inner graphs live together. Pattern: MAML evaluated with more steps."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations", "evaluation"]}

import torch
from torch import nn
from torch.func import functional_call

net = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 16)).cuda()
meta = torch.optim.Adam(net.parameters(), lr=1e-3)


def adapted(x, y, steps):
    weights = dict(net.named_parameters())
    for _ in range(steps):
        loss = (functional_call(net, weights, (x,)) - y).square().mean()
        grads = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
        weights = {name: w - 0.01 * g for (name, w), g in zip(weights.items(), grads)}
    return weights


def task():
    return torch.randn(8192, 256, device="cuda"), torch.randn(8192, 16, device="cuda")


for epoch in range(3):
    for step in range(12):
        x, y = task()
        loss = (functional_call(net, adapted(x, y, 2), (x,)) - y).square().mean()
        meta.zero_grad()
        loss.backward()
        meta.step()
    x, y = task()
    error = (functional_call(net, adapted(x, y, 60), (x,)) - y).square().mean().item()
    print(epoch, error)
