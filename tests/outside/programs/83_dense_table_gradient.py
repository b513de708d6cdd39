"""A click model with one big table of ids runs forward, then dies in the first backward: the gradient of the table is dense and as large as the table, though a batch touches a few thousand rows. Source: https://github.com/pytorch/pytorch/issues/109282 - an EmbeddingBag's backward allocated as much memory as the whole table; without sparse=True the gradient is dense."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["gradients"],
            "mentions": [["sparse", "embedding", "table"]]}

# Arithmetic: the table has 3,000,000 rows x 128 x 4 bytes = 1465 MiB. Its dense gradient is 1465 MiB more = 2930 MiB >
# 3072 - 430 = 2642 MiB: dies in the first backward. A sparse gradient of 1024 x 20 rows would be 10 MiB.
import random

import torch
import torch.nn as nn


class ClickModel(nn.Module):
    def __init__(self, ids=3_000_000, dim=128, dense=13):
        super().__init__()
        self.table = nn.EmbeddingBag(ids, dim, mode="sum", device="cuda")
        self.top = nn.Sequential(
            nn.Linear(dim + dense, 256), nn.ReLU(),
            nn.Linear(256, 64), nn.ReLU(),
            nn.Linear(64, 1),
        ).cuda()

    def forward(self, ids, offsets, numbers):
        return self.top(torch.cat([self.table(ids, offsets), numbers], dim=1)).squeeze(1)


def read_batch(rows=1024, per_row=20, ids=3_000_000):
    flat = torch.tensor([random.randrange(ids) for _ in range(rows * per_row)])
    offsets = torch.arange(0, rows * per_row, per_row)
    return flat.cuda(), offsets.cuda(), torch.rand(rows, 13).cuda(), torch.randint(0, 2, (rows,)).float().cuda()


model = ClickModel()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
bce = nn.BCEWithLogitsLoss()
for step in range(50):
    ids, offsets, numbers, clicked = read_batch()
    opt.zero_grad()
    loss = bce(model(ids, offsets, numbers), clicked)
    loss.backward()  # <- here
    opt.step()
    print(step, loss.item())
