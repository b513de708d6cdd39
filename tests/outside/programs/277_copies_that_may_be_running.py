"""A loader copies to the device on a stream of its own. So that no host or device buffer is freed during a copy, it keeps each with an event; nothing is taken out when the event is done. 64 KiB a step. Pattern: prefetchers."""
EXPECTED = {"kind": "leak", "holder": ["running", "Prefetcher", "loader"], "growing": True}

import torch
from torch import nn


class Prefetcher:
    def __init__(self, count):
        self.count, self.stream, self.running = count, torch.cuda.Stream(), []

    def __iter__(self):
        for _ in range(self.count):
            host = torch.randn(128, 128)
            with torch.cuda.stream(self.stream):
                batch = host.to("cuda", non_blocking=True)
                done = torch.cuda.Event()
                done.record(self.stream)
            self.running.append((done, host, batch))  # <- here
            torch.cuda.current_stream().wait_event(done)
            yield batch


net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 128)).cuda()
opt = torch.optim.Adam(net.parameters())
loader = Prefetcher(90)
for batch in loader:
    loss = nn.functional.huber_loss(net(batch), batch)
    opt.zero_grad()
    loss.backward()
    opt.step()
