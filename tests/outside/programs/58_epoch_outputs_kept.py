"""A segmentation trainer that keeps one record with all posteriors and labels for each epoch; only the newest record is used for the metrics, the older ones stay in the trainer's list. Source: https://github.com/microsoft/InnerEye-DeepLearning/pull/209 - the change established that model outputs were persisted across epochs and that this leads to running out of memory."""
EXPECTED = {"kind": "leak", "holder": ["epoch_records", "EpochRecord", "posteriors"], "growing": True}

from dataclasses import dataclass, field
from typing import List

import torch
import torch.nn as nn


@dataclass
class EpochRecord:
    epoch: int
    losses: List[float] = field(default_factory=list)
    posteriors: List[torch.Tensor] = field(default_factory=list)
    labels: List[torch.Tensor] = field(default_factory=list)

    def dice(self):
        p = torch.cat(self.posteriors).argmax(1)
        y = torch.cat(self.labels)
        return (2.0 * ((p == y) & (y > 0)).sum() / ((p > 0).sum() + (y > 0).sum() + 1)).item()


class SegmentationTrainer:
    def __init__(self, net, lr):
        self.net = net
        self.optimizer = torch.optim.Adam(net.parameters(), lr=lr, amsgrad=True)
        self.criterion = nn.CrossEntropyLoss()
        self.epoch_records: List[EpochRecord] = []

    def fit(self, epochs, steps):
        for epoch in range(epochs):
            record = EpochRecord(epoch)
            self.epoch_records.append(record)  # <- here
            for _ in range(steps):
                self.minibatch(record)
            print(f"epoch {epoch}: loss {sum(record.losses) / steps:.4f} dice {record.dice():.4f}")

    def minibatch(self, record):
        volume = torch.randn(12, 1, 48, 48, device="cuda")
        label = torch.randint(0, 4, (12, 48, 48)).cuda()
        logits = self.net(volume)
        loss = self.criterion(logits, label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        record.losses.append(loss.item())
        record.posteriors.append(torch.softmax(logits.detach(), 1))  # <- here
        record.labels.append(label)  # <- here


if __name__ == "__main__":
    width = 64
    net = nn.Sequential(
        nn.Conv2d(1, width, 5, padding=2), nn.LeakyReLU(0.1),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.LeakyReLU(0.1),
        nn.Conv2d(2 * width, 4, 1),
    ).cuda()
    SegmentationTrainer(net, 1e-3).fit(epochs=9, steps=10)
