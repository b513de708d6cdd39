"""A learning-rate range test keeps a copy of the model's and optimizer's state on the GPU, which is used twice: to reset after the sweep, and to begin the run again when a second learning rate is tried; causal masks come from functools.cache over at most 12 lengths. Source: https://github.com/davidtvs/pytorch-lr-finder/pull/1 - the state has to be a real copy so that a reset works, and the copy in memory is the price, with a file as the other choice."""
EXPECTED = {"kind": "innocent"}

import copy
import functools
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

LENGTHS = [24, 32, 40, 48, 64, 80, 96, 112, 128, 160, 192, 224]


@functools.cache
def causal_mask(heads, length):
    bias = -torch.arange(length).float()
    slopes = 2.0 ** -torch.arange(1, heads + 1).float()
    ramp = (bias[None, :] - bias[:, None]).abs().neg() * slopes[:, None, None]
    return ramp.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf")).cuda()


class AlibiLM(nn.Module):
    def __init__(self, vocab=900, d=192, heads=4):
        super().__init__()
        self.heads = heads
        self.emb = nn.Embedding(vocab, d)
        self.attn = nn.ModuleList(nn.MultiheadAttention(d, heads, batch_first=True) for _ in range(2))
        self.ff = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 600), nn.ReLU(), nn.Linear(600, d)) for _ in range(2)
        )
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        mask = causal_mask(self.heads, ids.shape[1]).repeat(len(ids), 1, 1)
        for a, f in zip(self.attn, self.ff):
            x = x + a(x, x, x, attn_mask=mask, need_weights=False)[0]
            x = x + f(x)
        return self.out(x)


class RangeTest:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.saved = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
        self.curve = []

    def sweep(self, step_fn, low, high, n):
        smooth = None
        for i in range(n):
            lr = low * (high / low) ** (i / (n - 1))
            for g in self.optimizer.param_groups:
                g["lr"] = lr
            value = step_fn()
            smooth = value if smooth is None else 0.8 * smooth + 0.2 * value
            self.curve.append((lr, smooth))
        drops = [(b[1] - a[1], b[0]) for a, b in zip(self.curve[4:], self.curve[5:])]
        return min(drops)[1]

    def reset(self, lr):
        self.model.load_state_dict(self.saved[0])
        self.optimizer.load_state_dict(self.saved[1])
        for g in self.optimizer.param_groups:
            g["lr"] = lr


rng = random.Random(6)
model = AlibiLM().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-4)


def train_step():
    ids = torch.randint(0, 900, (3, rng.choice(LENGTHS)), device="cuda")
    loss = F.cross_entropy(model(ids)[:, :-1].reshape(-1, 900), ids[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()


for _ in range(5):
    train_step()
finder = RangeTest(model, opt)
suggested = finder.sweep(train_step, 1e-6, 1e-1, 40)
print("suggested", suggested)
outcome = {}
for lr in (suggested, suggested / 3):
    finder.reset(lr)
    tail = [train_step() for _ in range(50)]
    outcome[lr] = sum(tail[-10:]) / 10
    print("lr", lr, "loss", outcome[lr])
