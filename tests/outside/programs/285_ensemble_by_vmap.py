"""Five networks are trained at once: their weights are stacked, and torch.func maps one function over them. Pattern: ensembles with functional_call and vmap."""
EXPECTED = {"kind": "innocent"}

import copy

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

nets = [nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)).cuda() for _ in range(5)]
weights, buffers = stack_module_state(nets)
base = copy.deepcopy(nets[0]).to("meta")


def loss_of(own, others, x, y):
    return (functional_call(base, (own, others), (x,)) - y).square().mean()


slopes_of_all = vmap(grad_and_value(loss_of), in_dims=(0, 0, None, None))
weights = {name: weight.detach() for name, weight in weights.items()}
best = None
for step in range(90):
    x = torch.randn(128, 32, device="cuda")
    slopes, losses = slopes_of_all(weights, buffers, x, x.sum(-1, keepdim=True))
    weights = {name: weight - 0.01 * slopes[name] for name, weight in weights.items()}
    best = losses.min() if best is None else torch.minimum(best, losses.min())
print(float(best))
