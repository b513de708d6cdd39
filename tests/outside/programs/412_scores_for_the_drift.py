"""A service watches whether its inputs drift: a middleware keeps the features of all requests in a deque without a bound, and looks at the newest hundred only. 128 KiB a request. Pattern: monitoring of models."""
EXPECTED = {"kind": "leak", "holder": ["recent", "Drift", "drift"], "growing": True}

from collections import deque
from itertools import islice

import torch
from torch import nn


class Drift:
    def __init__(self):
        self.recent = deque()

    def seen(self, features):
        self.recent.append(features)  # <- here

    def value(self):
        newest = [one.mean(0) for one in islice(reversed(self.recent), 100)]
        return torch.stack(newest).std(0).mean().item()


class Service:
    def __init__(self, body, head, watchers):
        self.body, self.head, self.watchers = body, head, watchers

    @torch.inference_mode()
    def __call__(self, x):
        features = self.body(x)
        for watcher in self.watchers:
            watcher.seen(features)
        return self.head(features).argmax(-1).tolist()


drift = Drift()
body = nn.Sequential(nn.Linear(128, 512), nn.ReLU()).cuda().eval()
service = Service(body, nn.Linear(512, 8).cuda().eval(), [drift])
for request in range(160):
    service(torch.randn(64, 128, device="cuda"))
    if request % 40 == 39:
        print(round(drift.value(), 3) >= 0)
