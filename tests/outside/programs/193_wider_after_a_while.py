"""A network gets a wider hidden layer after a third of the training; the trained weights are copied over and a new optimizer is made. Right: one step up for good reason."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


def widen(old, width):
    new = nn.Sequential(nn.Linear(100, width), nn.ReLU(), nn.Linear(width, 100)).cuda()
    with torch.no_grad():
        h = old[0].out_features
        new[0].weight[:h] = old[0].weight
        new[2].weight[:, :h] = old[2].weight
    return new


model = nn.Sequential(nn.Linear(100, 500), nn.ReLU(), nn.Linear(500, 100)).cuda()
opt = torch.optim.Adam(model.parameters())
for step in range(100):
    if step in (33, 66):
        model = widen(model, 2 * model[0].out_features)
        opt = torch.optim.Adam(model.parameters())
    x = torch.randn(64, 100, device="cuda")
    loss = (model(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
