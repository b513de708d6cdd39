"""Batches are grouped by length, and one batch of the first epoch is sixteen times as long as the others. Pattern: outliers in the data."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["data", "input", "activations"],
            "mentions": [["length", "larger", "longer", "shape", "long", "rows"]]}

import torch
from torch import nn

embed = nn.Embedding(4000, 512).cuda()
body = nn.TransformerEncoder(nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0), 4, enable_nested_tensor=False).cuda()
head = nn.Linear(512, 4000).cuda()
weights = [*embed.parameters(), *body.parameters(), *head.parameters()]
opt = torch.optim.AdamW(weights)
for step in range(60):
    length = 4096 if step == 31 else 256
    tokens = torch.zeros(8, length, dtype=torch.long, device="cuda")
    logits = head(body(embed(tokens)))
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
    loss.backward()
    opt.step()
    opt.zero_grad()
