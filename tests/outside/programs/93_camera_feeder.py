"""Learning from a camera stream: a feeder thread reads frames, moves them to the device and hands them over through a queue; when the queue is long it naps, but then it adds the frame all the same, so the limit does not bind and the queue gets longer than the trainer can eat. Source: https://github.com/openvinotoolkit/open_model_zoo/issues/1578 - established that a missing continue after the length check lets the frames queue grow past max_queue_length until memory runs out."""
EXPECTED = {"kind": "leak", "holder": ["frames", "FrameFeeder", "feeder", "queue"], "growing": True}

import queue
import threading
import time

import torch
import torch.nn as nn


class FrameFeeder(threading.Thread):
    def __init__(self, count, max_queue_length=4):
        super().__init__(daemon=True)
        self.count = count
        self.max_queue_length = max_queue_length
        self.frames = queue.Queue()
        self.stopped = threading.Event()

    def read(self):
        return torch.randn(16, 3, 64, 64, device="cuda")  # <- here

    def run(self):
        for number in range(self.count):
            if self.stopped.is_set():
                return
            if self.frames.qsize() > self.max_queue_length:
                time.sleep(0.006)
            self.frames.put((number, self.read()))  # <- here


class FutureFrame(nn.Module):
    """Predicts the next clip from the present one."""

    def __init__(self, ch=64):
        super().__init__()
        self.inp = nn.Conv2d(3, ch, 3, padding=1)
        self.mid = nn.ModuleList(nn.Conv2d(ch, ch, 3, padding=1) for _ in range(10))
        self.out = nn.Conv2d(ch, 3, 3, padding=1)

    def forward(self, x):
        h = torch.relu(self.inp(x))
        for conv in self.mid:
            h = h + torch.relu(conv(h))
        return self.out(h)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = FutureFrame().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    feeder = FrameFeeder(count=2500)
    feeder.start()

    _, present = feeder.frames.get()
    for step in range(1, 121):
        number, following = feeder.frames.get()
        loss = (model(present) - following).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        present = following
        time.sleep(0.015)  # the display of the live view
        if step % 30 == 0:
            print(f"step {step}, frame {number}, loss {loss.item():.4f}")

    feeder.stopped.set()
    feeder.join()
