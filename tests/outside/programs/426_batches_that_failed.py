"""A training goes on when a batch fails. The errors are put into a list for a report, and their tracebacks retain the frames with the graph of the batch. Every third batch fails. Pattern: exceptions that are kept."""
EXPECTED = {"kind": "leak", "holder": ["failed", "traceback", "tb_frame", "error"], "growing": True, "bytes_per_step": 409_000, "raises_peak": True}

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 768), nn.ReLU(), nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 3)).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.01)
failed = []


def check(loss, number):
    if number % 3 == 2:
        raise ValueError(f"batch {number}: a label is out of range")


def train_on(x, number):
    loss = model(x).logsumexp(-1).mean()
    check(loss, number)
    opt.zero_grad()
    loss.backward()
    opt.step()


for number in range(120):
    try:
        train_on(torch.randn(128, 64, device="cuda"), number)
    except ValueError as error:
        failed.append((number, error))  # <- here
print(len(failed))
