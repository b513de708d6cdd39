"""A training loop skips bad batches: the check raises an error, the loop catches it and puts it into a list for the report at the end, and with the error stay its traceback, the frame of the failed step, and that frame's input, outputs and graph. Source: https://github.com/pytorch/pytorch/issues/27600 - a maintainer explains that an exception holds the frame where it was raised, and so all tensors there; while one keeps the exception, the memory cannot be freed."""
EXPECTED = {
    "kind": "leak",
    "holder": ["skipped", "errors", "__traceback__", "traceback", "err", "exception"],
    "growing": True,
}

import random
import torch
from torch import nn

pick = random.Random(31)


class UnusableBatch(RuntimeError):
    def __init__(self, step, reason):
        super().__init__(f"step {step}: {reason}")
        self.step = step


def make_batch():
    x = torch.randn(64, 512, device="cuda")
    if pick.random() < 0.4:
        x[pick.randrange(64)] = float("inf")       # a broken recording
    return x


class Runner:
    def __init__(self):
        self.net = nn.Sequential(
            nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 512)
        ).cuda()
        self.optim = torch.optim.Adam(self.net.parameters(), 1e-3)
        self.skipped = []
        self.done = 0

    def train_one(self, step):
        x = make_batch()
        rebuilt = self.net(x)
        loss = (rebuilt - x).pow(2).mean()
        if not torch.isfinite(loss):
            raise UnusableBatch(step, f"loss is {loss.item()}")
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        return loss.item()

    def run(self, steps):
        recent = 0.0
        for step in range(steps):
            try:
                recent = 0.9 * recent + 0.1 * self.train_one(step)
                self.done += 1
            except UnusableBatch as err:
                self.skipped.append(err)  # <- here
            if step % 30 == 29:
                print(f"{step + 1}: done {self.done}, skipped {len(self.skipped)}, loss {recent:.4f}")
        for e in self.skipped[-3:]:
            print("skipped:", e)


Runner().run(150)
