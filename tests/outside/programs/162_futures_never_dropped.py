"""Metrics are computed in a pool of threads; the list of futures is waited for at the end only, and each future keeps its result on the GPU. Pattern: concurrent metrics."""
EXPECTED = {"kind": "leak", "holder": ["futures"], "growing": True}

from concurrent.futures import ThreadPoolExecutor, wait

import torch
from torch import nn


def similarity(features):
    with torch.no_grad():
        unit = nn.functional.normalize(features, dim=1)
        return unit @ unit.t()


encoder = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128)).cuda()
optimizer = torch.optim.Adam(encoder.parameters(), lr=3e-4)
futures = []
with ThreadPoolExecutor(2) as pool:
    for step in range(60):
        x = torch.randn(384, 256, device="cuda")
        z = encoder(x)
        loss = (z - z.roll(1, 0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        futures.append(pool.submit(similarity, z.detach()))  # <- here
    wait(futures)
print(len(futures), "similarities")
