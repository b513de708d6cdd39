"""Whenever the validation score improves, a copy of the weights is appended to a list on the GPU, from which only the last is ever used. Pattern: early stopping helpers."""
EXPECTED = {"kind": "leak", "holder": ["best_states", "stopper"], "growing": True}

import copy

import torch
from torch import nn


class Stopper:
    def __init__(self):
        self.best = float("inf")
        self.best_states = []

    def __call__(self, score, model):
        if score < self.best:
            self.best = score
            self.best_states.append(copy.deepcopy(model.state_dict()))  # <- here


model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 300)).cuda()
opt = torch.optim.Adam(model.parameters())
stopper = Stopper()
for epoch in range(20):
    for _ in range(5):
        x = torch.randn(64, 300, device="cuda")
        loss = (model(x) - x).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    stopper(1.0 / (epoch + 1), model)
print(len(stopper.best_states), "snapshots")
