"""Temporal ensembling keeps one running prediction per training sample in a dict on the GPU: the dict fills during the first epoch, because that is when each sample is met for the first time, and in later epochs the entries are only replaced. Source: none, a common pattern."""
EXPECTED = {"kind": "innocent"}

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

N_SAMPLES, BATCH, CLASSES = 3200, 64, 4096


class EnsembleTargets:
    def __init__(self, alpha=0.6):
        self.alpha = alpha
        self.by_id = {}

    def update(self, ids, probs):
        for row, i in enumerate(ids):
            p = probs[row]
            if i in self.by_id:
                self.by_id[i] = self.alpha * self.by_id[i] + (1 - self.alpha) * p
            else:
                self.by_id[i] = p.clone()   # a clone, so that the batch itself is not held

    def lookup(self, ids, fallback):
        return torch.stack([self.by_id.get(i, fallback[row]) for row, i in enumerate(ids)])


def net():
    return nn.Sequential(nn.Linear(512, 768), nn.GELU(), nn.Dropout(0.3), nn.Linear(768, CLASSES))


def run(epochs=3):
    model = net().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    targets = EnsembleTargets()
    order = list(range(N_SAMPLES))
    rng = random.Random(3)
    for epoch in range(epochs):
        rng.shuffle(order)
        running = 0.0
        for start in range(0, N_SAMPLES, BATCH):
            ids = order[start:start + BATCH]
            x = torch.randn(BATCH, 512, device="cuda")
            y = torch.randint(0, CLASSES, (BATCH,), device="cuda")
            logits = model(x)
            probs = logits.detach().softmax(-1)
            loss = F.cross_entropy(logits, y)
            if epoch > 0:
                loss = loss + F.mse_loss(logits.softmax(-1), targets.lookup(ids, probs))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            targets.update(ids, probs)
            running += loss.item()
        print("epoch", epoch, "targets", len(targets.by_id), "loss", running / (N_SAMPLES // BATCH))


run()
