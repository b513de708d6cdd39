"""A sequence classifier for genomic windows: the stream of device batches is split in two with itertools.tee, one branch for training and one for a calibration pass at the very end, so every batch that training has used waits in the tee for the slow branch. Source: https://github.com/kipoi/kipoi/pull/277 - established that building the training iterator with itertools.tee made the data loader keep the loaded samples in memory; iterating over plain iterables cured it."""
EXPECTED = {"kind": "leak", "holder": ["calibration_stream", "tee"], "growing": True}

import itertools

import torch
import torch.nn as nn
import torch.nn.functional as F

WINDOW = 1000
STEPS = 110


class SpliceNet(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.stem = nn.Conv1d(4, width, 11, padding=5)
        self.blocks = nn.ModuleList([nn.Conv1d(width, width, 5, padding=2) for _ in range(3)])
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = F.relu(self.stem(x))
        for conv in self.blocks:
            x = x + F.relu(conv(x))
        return self.head(x.mean(-1))


def windows(n, batch_size=64):
    gen = torch.Generator().manual_seed(17)
    for _ in range(n):
        seq = torch.randn(batch_size, 4, WINDOW, device="cuda")  # <- here
        label = torch.randint(0, 3, (batch_size,), generator=gen)
        yield {"inputs": seq, "targets": label.to("cuda")}


def calibrate(model, stream, n):
    model.eval()
    temps = []
    with torch.no_grad():
        for batch in itertools.islice(stream, n):
            temps.append(model(batch["inputs"]).std().item())
    return sum(temps) / len(temps)


def main():
    torch.manual_seed(3)
    model = SpliceNet().to("cuda")
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    train_stream, calibration_stream = itertools.tee(windows(STEPS))  # <- here

    for it, batch in enumerate(train_stream, 1):  # <- here
        logits = model(batch["inputs"])
        loss = F.cross_entropy(logits, batch["targets"])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if it % 22 == 0:
            print(f"it {it:4d}  loss {loss.item():.4f}")

    print("temperature", calibrate(model, calibration_stream, 12))


main()
