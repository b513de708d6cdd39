"""A recommendation model's tables fit with their gradients; Adam's two moments, made in the first update, do not. Pattern: dense gradients of large embeddings."""
EXPECTED = {"kind": "oom", "memory": "6G", "cause": ["optimizer"], "mentions": [["SGD", "8-bit", "SparseAdam", "sparse"]]}

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(3_000_000, 128)
        self.items = nn.Embedding(1_000_000, 128)

    def forward(self, u, i):
        return (self.users(u) * self.items(i)).sum(-1)


with torch.device("cuda"):
    model = Recommender()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(10):
    u = torch.randint(0, 3_000_000, (4096,), device="cuda")
    i = torch.randint(0, 1_000_000, (4096,), device="cuda")
    loss = nn.functional.binary_cross_entropy_with_logits(model(u, i), torch.ones(4096, device="cuda"))
    loss.backward()
    opt.step()
    opt.zero_grad()
