"""A sweep trains a model for each setting. What is kept of a trial is a partial of its predict method, and with it the model and its optimizer: 4.1 MiB every 15 steps. Pattern: sweeps in one process that run out of memory after some trials."""
EXPECTED = {"kind": "leak", "holder": ["predictors"], "growing": True, "bytes_per_step": 289_000, "raises_peak": True}

from functools import partial

import torch
from torch import nn


class Trial:
    def __init__(self, rate):
        self.model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 400)).cuda()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=rate)

    def fit(self, steps):
        for _ in range(steps):
            x = torch.randn(64, 128, device="cuda")
            loss = self.model(x).square().mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
        return loss.item()

    def predict(self, x, temperature):
        with torch.no_grad():
            return (self.model(x) / temperature).softmax(-1)


predictors, scores = {}, {}
for number in range(12):
    trial = Trial(1e-4 * 1.5**number)
    scores[number] = trial.fit(15)
    predictors[number] = partial(trial.predict, temperature=1.0 + 0.1 * number)  # <- here
best = min(scores, key=scores.get)
print(predictors[best](torch.randn(4, 128, device="cuda")).shape)
