"""Iterative pruning: after each round of sixteen steps the masks are computed again from the weights, and the weights become those of the start again. Pattern: iterative magnitude pruning."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 192), nn.ReLU(), nn.Linear(192, 64)).cuda()
start = {name: weight.detach().clone() for name, weight in net.named_parameters()}
masks = {name: torch.ones_like(weight) for name, weight in net.named_parameters()}
sparsity = []
for round_ in range(7):
    opt = torch.optim.Adam(net.parameters())
    for _ in range(16):
        x = torch.randn(64, 64, device="cuda")
        loss = (net(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        for name, weight in net.named_parameters():
            weight.grad *= masks[name]
        opt.step()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            limit = weight.abs().flatten().kthvalue(max(1, weight.numel() // 5)).values
            masks[name] = masks[name] * (weight.abs() > limit)
            weight.copy_(start[name] * masks[name])
    sparsity.append(sum(mask.mean().item() for mask in masks.values()) / len(masks))
