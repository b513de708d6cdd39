"""A search over learning rates uses one Accelerator for all of its trials; prepare() puts each model and optimizer into the Accelerator's own lists, so the models, gradients and moments of all finished trials stay on the GPU. Source: https://github.com/huggingface/accelerate/issues/84 - a reused Accelerator keeps a reference to each optimizer, and the memory of the old ones is not released; free_memory was made for it."""
EXPECTED = {
    "kind": "leak",
    "holder": ["_models", "_optimizers", "accelerator", "Accelerator"],
    "growing": True,
}

import math
import random

import torch
from accelerate import Accelerator
from torch import nn


def build(width):
    return nn.Sequential(
        nn.Linear(128, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 20)
    )


def objective(accelerator, lr, width, steps=6):
    model = build(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model, optimizer = accelerator.prepare(model, optimizer)  # <- here
    model.train()
    for _ in range(steps):
        x = torch.randn(64, 128, device=accelerator.device)
        y = x[:, :20].argmax(-1)
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return loss.item()


def search(n_trials):
    accelerator = Accelerator()
    rng = random.Random(9)
    best = (math.inf, None)
    for trial in range(n_trials):
        lr = 10 ** rng.uniform(-4, -2)
        score = objective(accelerator, lr, width=448)
        if score < best[0]:
            best = (score, lr)
        if trial % 6 == 5:
            accelerator.print(f"trial {trial + 1}: best {best[0]:.3f} at lr {best[1]:.5f}")
    return best


print(search(36))
