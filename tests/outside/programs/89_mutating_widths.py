"""Evolving the widths of a network while it trains: after every generation a few layers are rebuilt wider or narrower and the optimizer's group is pointed to the new parameters, but the moments of the parameters that were replaced stay in the optimizer's state, keyed by the old parameters. Source: https://github.com/DrChainsaw/NaiveNASflux.jl/issues/18 - established that a stateful optimizer such as Adam keeps its state in a dictionary per parameter array, and that replacing arrays on mutation makes the dictionary collect entries."""
EXPECTED = {"kind": "leak", "holder": ["optimizer.state", "optimizer", "opt.state"], "growing": True}

import random

import torch
import torch.nn as nn
import torch.nn.functional as F


class Evolvable(nn.Module):
    def __init__(self, d_in, widths, d_out):
        super().__init__()
        dims = [d_in, *widths, d_out]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))

    @property
    def widths(self):
        return [l.out_features for l in self.layers[:-1]]

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return self.layers[-1](x)

    @torch.no_grad()
    def resize(self, i, width):
        """Change the number of outputs of layer i, keeping what fits of the old weights."""
        for j, (rows, cols) in ((i, (width, self.layers[i].in_features)), (i + 1, (self.layers[i + 1].out_features, width))):
            old = self.layers[j]
            new = nn.Linear(cols, rows).to(old.weight.device)  # <- here
            r, c = min(rows, old.out_features), min(cols, old.in_features)
            new.weight[:r, :c] = old.weight[:r, :c]
            new.bias[:r] = old.bias[:r]
            self.layers[j] = new


def fit(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(96, 512, device="cuda")
        y = torch.randn(96, 16, device="cuda")
        loss = F.smooth_l1_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- here
    return loss.item()


rng = random.Random(4)
torch.manual_seed(4)
model = Evolvable(512, [1152, 1152, 1152, 1152], 16).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

for generation in range(10):
    loss = fit(model, optimizer, steps=12)
    print("generation", generation, "widths", model.widths, "loss", loss)
    for i in rng.sample(range(4), 2):
        model.resize(i, rng.choice([1024, 1088, 1152, 1216, 1280]))
    optimizer.param_groups[0]["params"] = list(model.parameters())  # <- here
