"""Private training takes the gradient of each example by torch.func: a batch of 96 makes 96 copies of all gradients at once. Small batches fitted. Pattern: per-sample gradients by vmap."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations", "gradients"], "mentions": [["chunk", "smaller", "batch", "rows", "micro"]]}

# Weights 36 MiB; 96 gradients of them are 3456 MiB, and the clipped ones as much again.
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

net = nn.Sequential(nn.Linear(1024, 3072), nn.ReLU(), nn.Linear(3072, 2048)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of_one(weights, x, y):
    return (functional_call(net, weights, (x.unsqueeze(0),)) - y).square().mean()


of_each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
for step in range(20):
    rows = 16 if step < 10 else 96
    x = torch.randn(rows, 1024, device="cuda")
    y = torch.randn(rows, 2048, device="cuda")
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    grads = of_each(weights, x, y)
    for name, weight in net.named_parameters():
        each = grads[name]
        norm = each.flatten(1).norm(dim=1).clamp(min=1.0)
        weight.grad = (each / norm.view(-1, *[1] * (each.dim() - 1))).mean(0)
    opt.step()
    opt.zero_grad()
