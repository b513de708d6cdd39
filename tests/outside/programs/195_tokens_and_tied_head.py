"""A tied language model whose vocabulary is extended once by new tokens, with the same optimizer class made again, inside a function. Right: nothing to report."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class LM(nn.Module):
    def __init__(self, vocab, dim=96):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.mix = nn.GRU(dim, dim, batch_first=True) if False else nn.Linear(dim, dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        return self.head(self.mix(self.tok(ids)).relu())


def train(model, vocab, steps):
    opt = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        ids = torch.randint(0, vocab, (16, 32), device="cuda")
        loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()


model = LM(2500).cuda()
train(model, 2500, 40)
bigger = nn.Embedding(2600, 96).cuda()
with torch.no_grad():
    bigger.weight[:2500] = model.tok.weight
model.tok = bigger
model.head.weight = bigger.weight
train(model, 2600, 60)
