"""Every eight steps a copy of the model is evaluated by a thread while the training goes on; a semaphore allows two of them at a time, and results are numbers. Right: two copies at most. Pattern: asynchronous evaluation."""
EXPECTED = {"kind": "innocent"}

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 384), nn.ReLU(), nn.Linear(384, 10)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
free = threading.Semaphore(2)
scores = {}


def evaluate(step, model):
    try:
        with torch.no_grad():
            total = 0.0
            for _ in range(3):
                total += model(torch.randn(128, 64, device="cuda")).mean().item()
                time.sleep(0.005)
            scores[step] = total / 3
    finally:
        free.release()


with ThreadPoolExecutor(2) as pool:
    for step in range(120):
        loss = net(torch.randn(128, 64, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 8 == 0:
            free.acquire()
            pool.submit(evaluate, step, copy.deepcopy(net).eval())
print(len(scores))
