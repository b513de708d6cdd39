"""A thread reads batches ahead, onto the device, up to twelve. At first the training is slow, so that the queue fills up over the first steps. Pattern: prefetching threads."""
EXPECTED = {"kind": "innocent"}

import queue
import threading

import torch
from torch import nn

ready = queue.Queue(maxsize=12)
turn = threading.Semaphore(2)


def read(count):
    for _ in range(count):
        turn.acquire()
        ready.put(torch.randn(512, 128, device="cuda"))
    ready.put(None)
    turn.release()


model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 4)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
reader = threading.Thread(target=read, args=(110,), daemon=True)
reader.start()
step = 0
while (batch := ready.get()) is not None:
    loss = model(batch).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    step += 1
    turn.release(2 if step % 4 == 0 and step < 44 else 1)
reader.join()
