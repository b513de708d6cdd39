"""Vectors of words are computed when first needed and kept; there are 300 words, drawn by a skewed distribution, so new ones become rare. Right: a cache over a finite set, which later steps read."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

torch.manual_seed(3)
vectors = {}
net = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 2)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
weights = 1.0 / torch.arange(1, 301, dtype=torch.float)


def vector(word):
    if word not in vectors:
        vectors[word] = torch.randn(1024, device="cuda")
    return vectors[word]


for step in range(260):
    words = torch.multinomial(weights, 32, replacement=True).tolist()
    x = torch.stack([vector(word) for word in words])
    loss = nn.functional.cross_entropy(net(x), torch.randint(0, 2, (32,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
print(len(vectors))
