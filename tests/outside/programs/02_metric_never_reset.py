"""Training with a home-made average-precision metric that collects scores and targets on the GPU; it is computed at the end of each epoch but never reset, so every epoch's scores stay. Source: https://github.com/NRCan/geo-deep-learning/issues/582 - the reporter established that the metric states grow until memory is exhausted and that calling reset() at the end fixes it."""
EXPECTED = {"kind": "leak", "holder": ["scores", "targets", "metric", "AveragePrecision"], "growing": True}

import torch
from torch import nn


class AveragePrecision:
    """Keeps all scores so that the curve can be made over the whole epoch."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.scores = []
        self.targets = []

    def update(self, scores, targets):
        self.scores.append(scores)  # <- here
        self.targets.append(targets)  # <- here

    def compute(self):
        s, t = torch.cat(self.scores), torch.cat(self.targets)
        order = s.argsort(dim=0, descending=True)
        hits = t.gather(0, order).float().cumsum(0)
        rank = torch.arange(1, len(s) + 1, device=s.device).unsqueeze(1)
        return (hits / rank).mean().item()


class Tagger(nn.Module):
    def __init__(self, n_tags=128):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, n_tags))

    def forward(self, x):
        return self.layers(x)


def train(epochs=4, batches=18):
    model = Tagger().cuda()
    metric = AveragePrecision()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    bce = nn.BCEWithLogitsLoss()
    for epoch in range(epochs):
        for _ in range(batches):
            x = torch.randn(1024, 512, device="cuda")
            y = torch.zeros(1024, 128, device="cuda")
            logits = model(x)
            loss = bce(logits, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            metric.update(logits.detach().sigmoid(), y.to(torch.int64))
        print(f"epoch {epoch}: AP {metric.compute():.4f}")


train()
