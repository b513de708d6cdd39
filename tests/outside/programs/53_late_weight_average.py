"""Stochastic weight averaging that begins after half of the run: at that moment one averaged copy of the model appears and memory stays level afterwards. Source: https://github.com/timgaripov/swa/issues/21 - the author established that only the current weights and one averaged set are stored, however many models are averaged."""
EXPECTED = {"kind": "innocent"}

import argparse

import torch
import torch.nn as nn
from torch.optim.swa_utils import SWALR, AveragedModel


def build(width, depth):
    net = [nn.Linear(300, width), nn.BatchNorm1d(width), nn.ReLU()]
    for _ in range(depth):
        net += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)]
    return nn.Sequential(*net, nn.Linear(width, 12))


def train_epoch(model, optimizer, iters):
    model.train()
    mean = 0.0
    for _ in range(iters):
        x = torch.randn(128, 300, device="cuda")
        y = torch.randint(0, 12, (128,)).cuda()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean += loss.item() / iters
    return mean


@torch.no_grad()
def refresh_batchnorm(model, iters):
    model.train()
    for _ in range(iters):
        model(torch.randn(128, 300, device="cuda"))


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=16)
parser.add_argument("--swa-start", type=int, default=8)
parser.add_argument("--iters", type=int, default=7)
cfg = parser.parse_args()

model = build(1280, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=cfg.swa_start)
swa_model = flat = None

for epoch in range(cfg.epochs):
    loss = train_epoch(model, optimizer, cfg.iters)
    if epoch >= cfg.swa_start:
        if swa_model is None:
            swa_model = AveragedModel(model)
            flat = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
        swa_model.update_parameters(model)
        flat.step()
    else:
        cosine.step()
    print(f"epoch {epoch:2d} loss {loss:.4f} averaged {int(swa_model is not None)}")

refresh_batchnorm(swa_model, 5)
print("averaged", cfg.epochs - cfg.swa_start, "models")
