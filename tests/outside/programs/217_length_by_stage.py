"""A language model trains on 64, 128, 192, 256 tokens, each for 25 steps. Memory rises with the length and stays there. Right: longer inputs are no leak."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Tiny(nn.Module):
    def __init__(self, vocab=500, dim=128):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.body = nn.TransformerEncoder(nn.TransformerEncoderLayer(dim, 4, 256, batch_first=True), 2)
        self.head = nn.Linear(dim, vocab)

    def forward(self, ids):
        return self.head(self.body(self.embed(ids)))


model = Tiny().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for length in (64, 128, 192, 256):
    for step in range(25):
        ids = torch.randint(0, 500, (8, length + 1), device="cuda")
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(length, loss.item())
