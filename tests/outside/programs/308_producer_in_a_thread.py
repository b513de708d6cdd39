"""A thread makes batches and puts them into a queue of at most six; a sentinel ends it. The training is slow at first, so that the queue fills, and fast later. Pattern: prefetching by a thread."""
EXPECTED = {"kind": "innocent"}

import queue
import threading
import time

import torch
from torch import nn

ready = queue.Queue(maxsize=6)


def produce(count):
    for _ in range(count):
        ready.put(torch.randn(256, 128, device="cuda"))
    ready.put(None)


threading.Thread(target=produce, args=(120,), daemon=True).start()
net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 128)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05)
step = 0
while (x := ready.get()) is not None:
    loss = (net(x) - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    if step < 30:
        time.sleep(0.01)
