"""A server keeps keys and values of every prompt under its tokens, to begin at once when a prompt comes again. No prompt does, as each has the time in it, and nothing is evicted. 256 KiB a prompt. Pattern: prefix caches."""
EXPECTED = {"kind": "leak", "holder": ["prefixes", "Engine", "engine"], "growing": True}

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.embed, self.kv, self.head = nn.Embedding(1000, width), nn.Linear(width, 2 * width), nn.Linear(width, 1000)

    def encode(self, tokens):
        return self.kv(self.embed(tokens)).chunk(2, -1)

    def forward(self, token, keys, values):
        q = self.embed(token)
        return self.head(nn.functional.scaled_dot_product_attention(q, keys, values))


class Engine:
    def __init__(self, block):
        self.block, self.prefixes = block, {}

    def prefix(self, prompt):
        key = tuple(prompt)
        if key not in self.prefixes:
            self.prefixes[key] = self.block.encode(torch.tensor([prompt], device="cuda"))  # <- here
        return self.prefixes[key]

    @torch.no_grad()
    def answer(self, prompt, length=6):
        keys, values = self.prefix(prompt)
        token = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        for _ in range(length):
            token = self.block(token, keys, values).argmax(-1)
        return token.item()


engine = Engine(Block().cuda().eval())
for second in range(120):
    engine.answer([second, second + 1, *range(62)])
