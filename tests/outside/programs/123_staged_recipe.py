"""A recipe in stages under Accelerate: warm-up with plain SGD, an EMA teacher created at step 30, a change to AdamW at step 60 (the first optimizer is released), a roll-back copy replaced every 20 steps, and a random number of micro-batches for each update: one-off stairs with noise, level at the end. Source: none, a common pattern."""
EXPECTED = {"kind": "innocent"}

import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator


class ResMLP(nn.Module):
    def __init__(self, d=768, depth=4, out=100):
        super().__init__()
        self.stem = nn.Linear(256, d)
        self.body = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, d), nn.GELU(), nn.Linear(d, d)) for _ in range(depth))
        self.out = nn.Linear(d, out)

    def forward(self, x):
        h = self.stem(x)
        for b in self.body:
            h = h + b(h)
        return self.out(h)


@torch.no_grad()
def ema_update(teacher, student, m=0.99):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.lerp_(s, 1 - m)


def main():
    rng = random.Random(42)
    acc = Accelerator()
    student = ResMLP().to("cuda")
    opt = torch.optim.SGD(student.parameters(), lr=0.1)
    teacher, rollback = None, None
    curve = []

    for step in range(150):
        if step == 30:
            teacher = copy.deepcopy(student).eval().requires_grad_(False)
        if step == 60:
            opt = torch.optim.AdamW(student.parameters(), lr=3e-4)

        opt.zero_grad()
        micro = rng.randint(1, 4)
        value = 0.0
        weak = torch.randn(64 * micro, 256, device="cuda")        # the whole update's data
        for part in weak.chunk(micro):
            y = torch.randint(0, 100, (len(part),), device="cuda")
            logits = student(part + 0.1 * torch.randn_like(part))
            loss = F.cross_entropy(logits, y)
            if teacher is not None:
                with torch.no_grad():
                    soft = teacher(part).softmax(-1)
                loss = loss + F.mse_loss(logits.softmax(-1), soft)
            acc.backward(loss / micro)
            value += loss.item() / micro
        opt.step()
        if teacher is not None:
            ema_update(teacher, student)
        if step % 20 == 19:
            rollback = {k: v.clone() for k, v in student.state_dict().items()}
            acc.print(f"step {step + 1} micro {micro} loss {value:.4f} kept {len(rollback)}")
        curve.append(value)
    acc.print("mean", sum(curve) / len(curve))


main()
