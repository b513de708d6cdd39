"""Texts are continued offline, the shortest prompt first. Each text has a cache of its own that gets longer with each token, and each is longer than the one before. What is kept are numbers. Pattern: batch generation."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, cache):
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache:
            k, v = torch.cat([cache["k"], k], 1), torch.cat([cache["v"], v], 1)
        cache["k"], cache["v"] = k, v
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Writer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers, self.head = nn.Embedding(400, 512), nn.ModuleList(Layer() for _ in range(2)), nn.Linear(512, 400)

    def forward(self, tokens, caches):
        x = self.embed(tokens)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cache)
        return self.head(x[:, -1])


writer = Writer().cuda().eval()
texts = []
for length in sorted((37 * n) % 400 + 16 for n in range(24)):
    tokens = torch.zeros(4, length, dtype=torch.long, device="cuda")
    caches = [{}, {}]
    written = []
    with torch.no_grad():
        for _ in range(20):
            tokens = writer(tokens, caches).argmax(-1, keepdim=True)
            written.append(tokens.flatten().tolist())
    texts.append(written)
print(len(texts))
