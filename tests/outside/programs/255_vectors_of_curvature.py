"""Every fourth step the largest eigenvalue is estimated with products of the Hessian; the vector is kept for the next estimate. Pattern: sharpness logged during a training."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 1)).cuda()
weights = list(net.parameters())
opt = torch.optim.SGD(weights, lr=0.05)
vector = [torch.randn_like(w) for w in weights]
sharpness = []
for step in range(100):
    x = torch.randn(64, 32, device="cuda")
    loss = net(x).square().mean()
    if step % 4 == 0:
        grads = torch.autograd.grad(loss, weights, create_graph=True)
        product = torch.autograd.grad(sum((g * v).sum() for g, v in zip(grads, vector)), weights, retain_graph=True)
        norm = torch.sqrt(sum(p.square().sum() for p in product)) + 1e-6
        vector = [p / norm for p in product]
        sharpness.append(norm.item())
        del grads, product
    opt.zero_grad()
    loss.backward()
    opt.step()
