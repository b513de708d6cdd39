"""Metric learning with a cross-batch memory of the latest embeddings: usage climbs for the first third of the run while the memory fills, then stays where it is, because the memory has a fixed length and takes detached embeddings. Source: https://github.com/KevinMusgrave/pytorch-metric-learning/issues/421 - a report of slowly growing memory; the maintainer's answer was that CrossBatchMemory is of fixed size and detaches what it stores, so that it does not leak."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn
import torch.nn.functional as F


class CrossBatchMemory:
    def __init__(self, size):
        self.size = size
        self.embeddings = None
        self.labels = None

    def enqueue(self, emb, lab):
        emb = emb.detach()
        if self.embeddings is None:
            self.embeddings, self.labels = emb.clone(), lab.clone()
            return
        self.embeddings = torch.cat([self.embeddings, emb])[-self.size:].clone()
        self.labels = torch.cat([self.labels, lab])[-self.size:].clone()

    def contrast(self, emb, lab, margin=0.4):
        sim = emb @ self.embeddings.t()
        same = lab[:, None].eq(self.labels[None, :]).float()
        pull = (same * (1 - sim)).mean()
        push = ((1 - same) * F.relu(sim - margin)).mean()
        return pull + push


class Embedder(nn.Module):
    def __init__(self, out=1024):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(2048, 2048), nn.BatchNorm1d(2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, out)
        )

    def forward(self, x):
        return F.normalize(self.body(x), dim=1)


torch.manual_seed(0)
net = Embedder().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True)
memory = CrossBatchMemory(size=128 * 45)

for it in range(1, 141):
    feats = torch.randn(128, 2048, device="cuda")
    ids = torch.randint(0, 500, (128,), device="cuda")

    emb = net(feats)
    memory.enqueue(emb, ids)
    loss = memory.contrast(emb, ids)

    opt.zero_grad()
    loss.backward()
    opt.step()

    if it % 35 == 0:
        print(it, "memory rows", len(memory.labels), "loss", round(loss.item(), 4))
