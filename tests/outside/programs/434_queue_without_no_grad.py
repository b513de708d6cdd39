"""The queue of keys of a contrastive training is a ring on the device. New keys are written into it without no_grad: the assignment extends the graph of the queue, and the activations of the key encoder stay for all steps. Pattern: momentum contrast without detach."""
EXPECTED = {"kind": "leak", "holder": ["queue"], "growing": True, "bytes_per_step": 295_000, "raises_peak": True}

import torch
from torch import nn


class Contrast(nn.Module):
    def __init__(self, width=32, room=1024):
        super().__init__()
        self.query = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, width))
        self.key = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, width))
        self.register_buffer("queue", torch.randn(room, width))
        self.at = 0

    def forward(self, x):
        q, k = self.query(x), self.key(x + 0.1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.queue.clone().detach().T], 1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=x.device))
        self.queue[self.at : self.at + len(x)] = k  # <- here
        self.at = (self.at + len(x)) % len(self.queue)
        return loss


model = Contrast().cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
for step in range(100):
    loss = model(torch.randn(128, 64, device="cuda"))
    opt.zero_grad()
    loss.backward(retain_graph=True)
    opt.step()
