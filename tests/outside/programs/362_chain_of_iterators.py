"""The embeddings of all steps are joined lazily: each step makes a new itertools.chain of the old one and its own tensor. 80 KiB a step. Pattern: lazy concatenation."""
EXPECTED = {"kind": "leak", "holder": ["everything", "chain"], "growing": True}

import itertools

import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(64, 160), nn.Tanh()).cuda()
decoder = nn.Linear(160, 64).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
everything = iter(())
for step in range(84):
    x = torch.randn(128, 64, device="cuda")
    z = encoder(x)
    loss = nn.functional.mse_loss(decoder(z), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    everything = itertools.chain(everything, (z.detach(),))  # <- here
print("embeddings:", sum(1 for _ in everything))
