"""A sweep over learning rates in one process: each trial trains a model of its own, and the study notes trial objects with their models, to pick the best at the end. Pattern: a study that stores its trainers."""
EXPECTED = {"kind": "leak", "holder": ["trials", "study"], "growing": True}

import torch
from torch import nn


class Trial:
    def __init__(self, number, lr):
        self.number = number
        self.model = nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 64)).cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.value = float("inf")

    def run(self, steps):
        for _ in range(steps):
            x = torch.randn(64, 64, device="cuda")
            loss = (self.model(x) - x).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.value = loss.item()


study = []
for number in range(12):
    trial = Trial(number, 10 ** (-2 - number / 6))
    trial.run(12)
    study.append(trial)  # <- here
print(min(study, key=lambda trial: trial.value).number)
