"""An optimizer written by hand takes gradients with create_graph, for a penalty on their size. Its momentum is made of them without detach, so that it has the graphs of all steps. Pattern: differentiable optimizers without truncation."""
EXPECTED = {"kind": "leak", "holder": ["momentum"], "growing": True}

import torch


def features(x, w1, w2):
    return torch.tanh(x @ w1) @ w2


weights = [
    torch.randn(32, 64, device="cuda").requires_grad_(),
    torch.randn(64, 8, device="cuda").requires_grad_(),
]
momentum = [torch.zeros_like(w) for w in weights]
for step in range(60):
    x = torch.randn(128, 32, device="cuda")
    loss = features(x, *weights).square().mean()
    slopes = torch.autograd.grad(loss, weights, create_graph=True)
    penalty = sum(slope.square().sum() for slope in slopes)
    slopes_of_both = torch.autograd.grad(loss + 0.1 * penalty, weights, create_graph=True)
    momentum = [0.9 * m + g for m, g in zip(momentum, slopes_of_both)]  # <- here
    with torch.no_grad():
        for w, m in zip(weights, momentum):
            w -= 0.01 * m
