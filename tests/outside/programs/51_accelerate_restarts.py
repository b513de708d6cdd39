"""Several trainings of different size one after another with one Accelerator: free_memory() comes first in every round, so each round starts from an empty device; rounds differ only because the models do. Source: https://github.com/huggingface/accelerate/pull/739 - established that with free_memory() called first in the loop all lingering references are wiped and the memory is really freed."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
from accelerate import Accelerator


class SetEncoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.rho = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, sets):
        return self.rho(self.phi(sets).sum(1))


def training_round(accelerator, width, steps):
    model = SetEncoder(width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    for _ in range(steps):
        with accelerator.accumulate(model):
            sets = torch.randn(64, 20, 16, device=accelerator.device)
            goal = torch.randn(64, 4, device=accelerator.device)
            loss = nn.functional.mse_loss(model(sets), goal)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return loss.item()


def main():
    accelerator = Accelerator()
    results = {}
    for width in (512, 768, 1024, 1280, 1024, 1280, 1280):
        accelerator.free_memory()
        results.setdefault(width, []).append(training_round(accelerator, width, steps=14))
        accelerator.print(width, results[width][-1])
    print({w: sum(v) / len(v) for w, v in results.items()})


if __name__ == "__main__":
    main()
