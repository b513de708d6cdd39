"""A learning-rate sweep that uses one Accelerator for all trials: prepare() appends each model and optimizer to lists inside the Accelerator, so no trial is ever released. Source: https://github.com/huggingface/accelerate/issues/84 - the reporter found that a reused Accelerator keeps references to the old optimizers and hence their GPU memory; free_memory() was added for it."""
EXPECTED = {"kind": "leak", "holder": ["accelerator", "Accelerator", "_models", "_optimizers"], "growing": True}

import random

import torch
from accelerate import Accelerator
from torch import nn

random.seed(3)
accelerator = Accelerator(mixed_precision="no")


def make_regressor(width, depth):
    layers = [nn.Linear(256, width), nn.GELU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.GELU()]
    layers.append(nn.Linear(width, 8))
    return nn.Sequential(*layers)


def trial(lr, steps=11):
    model = make_regressor(768, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model, optimizer = accelerator.prepare(model, optimizer)  # <- here
    model.train()
    total = 0.0
    for _ in range(steps):
        x = torch.randn(128, 256, device=accelerator.device)
        y = torch.randn(128, 8, device=accelerator.device)
        loss = nn.functional.smooth_l1_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item()
    return total / steps


scores = {}
for k in range(9):
    lr = 10 ** random.uniform(-4.5, -2)
    scores[lr] = trial(lr)
    accelerator.print(f"trial {k}: lr={lr:.2e} score={scores[lr]:.4f}")

best = min(scores, key=scores.get)
accelerator.print("best lr", best)
