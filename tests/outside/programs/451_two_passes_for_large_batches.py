"""A large contrastive batch in two passes: features of all chunks without a graph first, then the gradients of the features, then each chunk again with a graph. The lists belong to one step. Pattern: gradient caching."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class CachedLoss:
    def __init__(self, model):
        self.model, self.features, self.gradients = model, [], []

    def step(self, chunks):
        self.features, self.gradients = [], []
        with torch.no_grad():
            for chunk in chunks:
                self.features.append(self.model(chunk))
        leaves = [one.detach().requires_grad_() for one in self.features]
        every = torch.cat(leaves)
        loss = nn.functional.cross_entropy(every @ every.T, torch.arange(len(every), device="cuda"))
        loss.backward()
        self.gradients = [one.grad for one in leaves]
        for chunk, gradient in zip(chunks, self.gradients, strict=True):
            (self.model(chunk) * gradient).sum().backward()
        return loss.item()


model = nn.Sequential(nn.Linear(120, 480), nn.ReLU(), nn.Linear(480, 256)).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
cached = CachedLoss(model)
for step in range(60):
    opt.zero_grad()
    cached.step([torch.randn(128, 120, device="cuda") for _ in range(6)])
    opt.step()
