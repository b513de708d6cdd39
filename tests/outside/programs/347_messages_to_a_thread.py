"""Metrics go to a thread through a queue; the thread writes them slowly, and keeps each message in a list as a backup. 32 KiB a step, detached. Pattern: an asynchronous logger."""
EXPECTED = {"kind": "leak", "holder": ["backup", "messages", "queue", "seen"], "growing": True}

import queue
import threading

import torch
from torch import nn


class Writer(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.queue, self.backup = queue.Queue(), []

    def run(self):
        while True:
            message = self.queue.get()
            if message is None:
                return
            self.backup.append(message)  # <- here

    def write(self, **message):
        self.queue.put(message)


writer = Writer()
writer.start()
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(90):
    x = torch.randn(128, 64, device="cuda")
    out = net(x)
    loss = (out - x).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    writer.write(step=step, out=out.detach(), loss=loss.detach())
writer.write(step=-1)
writer.queue.put(None)
writer.join()
print(len(writer.backup))
