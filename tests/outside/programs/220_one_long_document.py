"""Documents are padded to the longest of their batch; after thirty ordinary batches comes one with 3,000 tokens. Pattern: a training that ends in the middle of an epoch, always at the same batch."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations", "input"], "mentions": [["3,000", "3000", "larger", "longer", "longest", "length"]]}

import torch
from torch import nn


class Reader(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.embed = nn.Embedding(4000, dim)
        self.query = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 4000)

    def forward(self, ids):
        h = self.embed(ids)
        weights = (self.query(h) @ h.transpose(1, 2) / 16).softmax(-1)
        return self.out(weights @ h)


model = Reader().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
lengths = [180 + 7 * (step % 11) for step in range(30)] + [3000] + [200] * 10
for length in lengths:
    ids = torch.randint(0, 4000, (24, length), device="cuda")
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
