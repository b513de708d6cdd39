"""A regression notes its prediction of each iteration in a results object, for an animation at the end; the predictions have their graphs. Pattern: plots of a Gaussian process while it trains."""
EXPECTED = {"kind": "leak", "holder": ["results", "Result", "iterations", "mean"], "growing": True}

from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Iteration:
    number: int
    mean: torch.Tensor
    spread: torch.Tensor


class Results:
    def __init__(self):
        self.iterations = []

    def note(self, number, mean, spread):
        self.iterations.append(Iteration(number, mean, spread))  # <- here


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(1, 96), nn.Tanh(), nn.Linear(96, 96), nn.Tanh())
        self.mean, self.spread = nn.Linear(96, 1), nn.Linear(96, 1)

    def forward(self, x):
        features = self.body(x)
        return self.mean(features), nn.functional.softplus(self.spread(features)) + 1e-3


train_x = torch.linspace(-1, 1, 400).unsqueeze(1).cuda()
train_y = torch.sin(6 * train_x)
model = Regression().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
results = Results()
for i in range(75):
    optimizer.zero_grad()
    mean, spread = model(train_x)
    loss = (spread.log() + 0.5 * ((train_y - mean) / spread) ** 2).mean()
    loss.backward()
    optimizer.step()
    results.note(i, mean, spread)  # <- here
print("iterations:", len(results.iterations))
