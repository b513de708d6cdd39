"""Two batches are moved ahead of the step on a queue, losses go into a window of 20 numbers, and the last output is shown now and then. Pattern: a prefetcher and a smoothed loss."""
EXPECTED = {"kind": "innocent"}

from collections import deque

import torch
from torch import nn


class Ahead:
    def __init__(self, batches, count=2):
        self.batches, self.queue, self.count = iter(batches), deque(), count

    def __iter__(self):
        for batch in self.batches:
            self.queue.append(tuple(part.cuda(non_blocking=True) for part in batch))
            if len(self.queue) > self.count:
                yield self.queue.popleft()
        while self.queue:
            yield self.queue.popleft()


def batches(number):
    for _ in range(number):
        yield torch.randn(96, 100), torch.randint(0, 5, (96,))


net = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 5)).cuda()
optimizer = torch.optim.Adam(net.parameters())
recent = deque(maxlen=20)
for step, (x, y) in enumerate(Ahead(batches(110))):
    output = net(x)
    loss = nn.functional.cross_entropy(output, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    recent.append(loss.item())
    if step % 30 == 0:
        print(step, sum(recent) / len(recent), tuple(output.shape))
