"""A decorator stores the arguments and the result of each call of the loss, to reproduce a NaN later. Pattern: a debug decorator that is left in."""
EXPECTED = {"kind": "leak", "holder": ["calls", "history"], "growing": True}

import functools
import time

import torch
from torch import nn


def recorded(function):
    calls = []

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        began = time.perf_counter()
        result = function(*args, **kwargs)
        calls.append({"seconds": time.perf_counter() - began, "args": args, "result": result})  # <- here
        return result

    wrapper.calls = calls
    return wrapper


@recorded
def focal_loss(logits, labels, gamma=2.0):
    each = nn.functional.cross_entropy(logits, labels, reduction="none")
    return ((1 - (-each).exp()) ** gamma * each).mean()


def train(steps):
    net = nn.Sequential(nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 50)).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for step in range(steps):
        logits = net(torch.randn(128, 100, device="cuda"))
        loss = focal_loss(logits, torch.zeros(128, dtype=torch.long, device="cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: {loss.item():.3f}")


train(80)
