"""Predictions go into a queue for a writer thread; the writer stopped at its first error, and the queue has no bound. Pattern: asynchronous image writers whose worker died."""
EXPECTED = {"kind": "leak", "holder": ["outbox", "queue"], "growing": True}

import queue
import threading

import torch
from torch import nn


class Writer:
    def __init__(self):
        self.outbox = queue.Queue()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            while True:
                name, image = self.outbox.get()
                image.numpy()  # a tensor on the GPU has no numpy()
        except TypeError:
            return

    def put(self, name, image):
        self.outbox.put((name, image))  # <- here


writer = Writer()
decoder = nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 3, 3, padding=1)).cuda()
opt = torch.optim.AdamW(decoder.parameters(), lr=1e-4)
for step in range(64):
    latent = torch.randn(8, 8, 64, 64, device="cuda")
    image = decoder(latent)
    loss = image.mean().square()
    loss.backward()
    opt.step()
    opt.zero_grad()
    writer.put(f"{step:05d}.png", image.detach())  # <- here
