"""Rows for a table are dictionaries with the loss tensor in them, and the table is made at the end. Pattern: the loss is logged without item()."""
EXPECTED = {"kind": "leak", "holder": ["rows"], "growing": True}

import torch
from torch import nn


class Run:
    def __init__(self):
        self.rows = []

    def log(self, **values):
        self.rows.append(values)  # <- here


run = Run()
model = nn.GRU(64, 128, num_layers=2, batch_first=True).cuda()
head = nn.Linear(128, 5).cuda()
opt = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=1e-3)
for step in range(110):
    x = torch.randn(64, 20, 64, device="cuda")
    out, _ = model(x)
    loss = nn.functional.cross_entropy(head(out[:, -1]), torch.randint(0, 5, (64,), device="cuda"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    run.log(step=step, loss=loss, rate=opt.param_groups[0]["lr"])  # <- here
print(len(run.rows))
