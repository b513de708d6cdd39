"""A denoiser is trained; then all data is encoded once, batch after batch, under no_grad; then a linear probe is trained on what was encoded. Pattern: two phases."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

encoder, decoder = nn.Linear(96, 64).cuda(), nn.Linear(64, 96).cuda()
data = [torch.randn(64, 96) for _ in range(40)]
opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()])
for batch in data:
    x = batch.cuda()
    loss = (decoder(encoder(x + 0.1 * torch.randn_like(x)).relu()) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()

encoder.eval()
with torch.no_grad():
    encoded = [encoder(batch.cuda()).relu() for batch in data]
everything = torch.cat(encoded)
del encoded

probe = nn.Linear(64, 4).cuda()
opt = torch.optim.SGD(probe.parameters(), lr=0.1)
for epoch in range(3):
    for rows in torch.randperm(len(everything)).split(64):
        loss = nn.functional.cross_entropy(probe(everything[rows.cuda()]), torch.zeros(len(rows), dtype=torch.long, device="cuda"))
        opt.zero_grad()
        loss.backward()
        opt.step()
