"""An architecture search builds one candidate after another; a class attribute lists all instances, so none is freed. Pattern: registries on classes."""
EXPECTED = {"kind": "leak", "holder": ["instances", "Candidate"], "growing": True}

import torch
from torch import nn


class Candidate(nn.Module):
    instances = []

    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, 256))  # <- here
        Candidate.instances.append(self)  # <- here

    def forward(self, x):
        return self.layers(x)


def train(width):
    model = Candidate(width).cuda()  # <- here
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(15):
        x = torch.randn(128, 256, device="cuda")
        loss = (model(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


best = min((train(width), width) for width in (1024, 1536, 2048, 1280, 1792, 1024, 2304, 1536, 2048, 1280))
print(best)
