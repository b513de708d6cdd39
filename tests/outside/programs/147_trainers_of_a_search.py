"""A random search keeps the whole trainer of each trial beside its score, so that models, optimizers and states of all trials stay on the GPU. Pattern: sweeps in notebooks."""
EXPECTED = {"kind": "leak", "holder": ["results", "trials"], "growing": True}

import random

import torch
from torch import nn


class Trainer:
    def __init__(self, width, lr):
        self.model = nn.Sequential(nn.Linear(128, width), nn.ReLU(), nn.Linear(width, 2)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def fit(self, steps):
        for _ in range(steps):
            x = torch.randn(64, 128, device="cuda")
            y = torch.randint(0, 2, (64,), device="cuda")
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


random.seed(4)
results = []
for trial in range(14):
    trainer = Trainer(width=1024, lr=10 ** random.uniform(-4, -2))
    results.append((trainer.fit(8), trial, trainer))  # <- here
print("best", min(r[:2] for r in results))
