"""The trainer keeps the predictions of the latest validation for a table on demand. A new validation replaces them. Pattern: trainers with a state."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Trainer:
    def __init__(self, model):
        self.model, self.latest = model, None
        self.opt = torch.optim.Adam(model.parameters())

    def validate(self):
        outputs = []
        with torch.no_grad():
            for _ in range(6):
                outputs.append(self.model(torch.randn(512, 60, device="cuda")))
        self.latest = {"logits": torch.cat(outputs), "step": self.step}

    def fit(self, steps):
        for self.step in range(steps):
            loss = self.model(torch.randn(64, 60, device="cuda")).logsumexp(-1).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if self.step % 10 == 9:
                self.validate()


Trainer(nn.Sequential(nn.Linear(60, 128), nn.ReLU(), nn.Linear(128, 150)).cuda()).fit(120)
