"""A decorator for debugging keeps the results of each call on the function that it wraps. Somebody left it on the forward of an encoder. Pattern: home-made tracing helpers."""
EXPECTED = {"kind": "leak", "holder": ["calls", "encode", "traced", "inner"], "growing": True}

import functools

import torch
from torch import nn


def traced(function):
    @functools.wraps(function)
    def inner(*args):
        value = function(*args)
        inner.calls.append((function.__name__, value))  # <- here
        return value

    inner.calls = []
    return inner


body = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
head = nn.Linear(256, 7).cuda()
opt = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-3)


@traced
def encode(x):
    return body(x)


for step in range(90):
    x = torch.randn(512, 128, device="cuda")
    y = torch.randint(0, 7, (512,), device="cuda")
    loss = nn.functional.cross_entropy(head(encode(x)), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
