"""Position encodings are computed once for each length and stored by length; texts have one of 12 lengths. Pattern: a cache of rotary tables."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

tables = {}


def table(length, dim):
    if length not in tables:
        angle = torch.arange(length, device="cuda")[:, None] / 10000 ** (torch.arange(0, dim, 2, device="cuda") / dim)
        tables[length] = torch.cat([angle.sin(), angle.cos()], -1)
    return tables[length]


body = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0).cuda()
words, out = nn.Embedding(300, 64).cuda(), nn.Linear(64, 300).cuda()
optimizer = torch.optim.Adam([*body.parameters(), *words.parameters(), *out.parameters()])
for step in range(110):
    length = 32 * (1 + (step * 7) % 12)
    ids = torch.zeros(4, length, dtype=torch.long, device="cuda")
    logits = out(body(words(ids) + table(length, 64)))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(tables), loss.item())
