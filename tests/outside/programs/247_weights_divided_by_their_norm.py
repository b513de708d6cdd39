"""A loop updates a matrix by hand and divides it by its norm; the division is recorded by autograd, so each step"s matrix has the graph of the one before. 64 KiB a step. Pattern: hand-written updates outside of no_grad."""
EXPECTED = {"kind": "leak", "holder": ["w"], "growing": True}

import torch

w = torch.randn(128, 128, device="cuda", requires_grad=True)
for step in range(80):
    x = torch.randn(64, 128, device="cuda")
    loss = (x @ w - x).square().mean()
    (grad,) = torch.autograd.grad(loss, w)
    w = w - 0.1 * grad  # <- here
    w = w / w.norm().clamp(min=1.0)  # <- here
print(w.shape)
