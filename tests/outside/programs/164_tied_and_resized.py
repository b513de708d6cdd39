"""Embedding and output layer share one weight; after a third of the training the vocabulary is enlarged once and the optimizer is rebuilt. Right: one step up, for good reason."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self, vocab, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, vocab, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(torch.tanh(self.rnn(self.embed(tokens))))

    def resize(self, vocab):
        old = self.embed
        self.embed = nn.Embedding(vocab, old.embedding_dim, device=old.weight.device)
        with torch.no_grad():
            self.embed.weight[: len(old.weight)] = old.weight
        self.out.weight = self.embed.weight


model = Tiny(3000).cuda()
opt = torch.optim.Adam(model.parameters())
vocab = 3000
for step in range(90):
    if step == 30:
        vocab = 4500
        model.resize(vocab)
        opt = torch.optim.Adam(model.parameters())
    tokens = torch.randint(0, vocab, (8, 24), device="cuda")
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
