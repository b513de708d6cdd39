"""A prefetcher copies the next batch on a stream of its own, with record_stream and events, two batches ahead. Pattern: data prefetchers of image trainings."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Prefetcher:
    def __init__(self, batches):
        self.batches, self.side = iter(batches), torch.cuda.Stream()
        self.waiting = []
        self.fetch()
        self.fetch()

    def fetch(self):
        try:
            x, y = next(self.batches)
        except StopIteration:
            return
        with torch.cuda.stream(self.side):
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            x = x.sub_(0.5).div_(0.25)
            done = torch.cuda.Event()
            done.record(self.side)
        self.waiting.append((x, y, done))

    def next(self):
        if not self.waiting:
            return None
        x, y, done = self.waiting.pop(0)
        torch.cuda.current_stream().wait_event(done)
        for part in (x, y):
            part.record_stream(torch.cuda.current_stream())
        self.fetch()
        return x, y


net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for epoch in range(3):
    fetcher = Prefetcher((torch.rand(32, 3, 32, 32), torch.randint(0, 10, (32,))) for _ in range(30))
    total = torch.zeros((), device="cuda")
    while (batch := fetcher.next()) is not None:
        loss = nn.functional.cross_entropy(net(batch[0]), batch[1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.detach()
    print(epoch, float(total))
