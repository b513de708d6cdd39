"""The next batch is copied on a side stream during the step; two are on the device at any time. Pattern: the data prefetcher of many image trainings."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Ahead:
    def __init__(self, batches):
        self.batches, self.stream, self.next = iter(batches), torch.cuda.Stream(), None
        self.load()

    def load(self):
        host = next(self.batches, None)
        if host is None:
            self.next = None
            return
        with torch.cuda.stream(self.stream):
            self.next = host.to("cuda", non_blocking=True)

    def __iter__(self):
        while self.next is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.next
            batch.record_stream(torch.cuda.current_stream())
            self.load()
            yield batch


net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 3, 3, padding=1)).cuda()
opt = torch.optim.Adam(net.parameters())
for epoch in range(3):
    for batch in Ahead(torch.randn(8, 3, 32, 32) for _ in range(30)):
        loss = (net(batch) - batch).abs().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
