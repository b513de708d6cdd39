"""A ranking metric that must see all scores of an epoch: its list states fill during each epoch and are emptied by reset() at the end, a saw-tooth. Source: https://github.com/Lightning-AI/pytorch-lightning/issues/5733 - the maintainer established that all predictions and targets are saved for the final value and that the footprint resets between epochs because the states are reset."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
from torchmetrics import Metric


class PairwiseOrder(Metric):
    full_state_update = False

    def __init__(self):
        super().__init__()
        self.add_state("scores", default=[], dist_reduce_fx="cat")
        self.add_state("clicks", default=[], dist_reduce_fx="cat")

    def update(self, scores, clicks):
        self.scores.append(scores.detach())
        self.clicks.append(clicks)

    def compute(self):
        s, c = torch.cat(self.scores), torch.cat(self.clicks)
        swapped = torch.roll(s, 1, dims=0)
        return ((s - swapped) * (c - torch.roll(c, 1, dims=0)) > 0).float().mean()


class TwoTower(nn.Module):
    def __init__(self, users=8000, items=6000, dim=128):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.mix = nn.Sequential(nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, dim))

    def forward(self, u, candidates):
        return torch.einsum("bd,bkd->bk", self.mix(self.user(u)), self.item(candidates))


def main():
    model = TwoTower().cuda()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    bce = nn.BCEWithLogitsLoss()
    order = PairwiseOrder().cuda()

    for epoch in range(6):
        for _ in range(20):
            u = torch.randint(0, 8000, (512,)).cuda()
            cand = torch.randint(0, 6000, (512, 100)).cuda()
            clicks = torch.randint(0, 2, (512, 100)).float().cuda()
            scores = model(u, cand)
            loss = bce(scores, clicks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            order.update(scores, clicks)
        print(f"epoch {epoch}: loss {loss.item():.4f}, order {order.compute().item():.3f}")
        order.reset()


main()
