"""A run that gathers its optimizer state into flat tensors before each checkpoint: the helper is made again every epoch and thrown away, but its results go to a container that belongs to the class, so the flat tensors of all epochs live on. Source: https://github.com/pytorch/pytorch/pull/96263 - established that FSDP's optim_state_dict stored the flat parameter result in a class variable and that this leaks memory."""
EXPECTED = {"kind": "leak", "holder": ["flat_results", "StateGatherer"], "growing": True}

import os
import tempfile
from typing import Dict, Tuple

import torch
from torch import nn


class StateGatherer:
    """Gathers the moments of every parameter group into one flat tensor per kind."""

    flat_results: Dict[Tuple[int, str], torch.Tensor] = {}

    def __init__(self, optimizer, epoch):
        self.optimizer = optimizer
        self.epoch = epoch

    def gather(self, kind):
        parts = []
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                parts.append(self.optimizer.state[p][kind].reshape(-1))
        self.flat_results[self.epoch, kind] = torch.cat(parts)  # <- here
        return self.flat_results[self.epoch, kind]

    def summary(self):
        return {kind: tuple(self.gather(kind).shape) for kind in ("exp_avg", "exp_avg_sq")}


class Tagger(nn.Module):
    def __init__(self, vocab=4000, dim=320, tags=40):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.out = nn.Linear(dim, tags)

    def forward(self, ids):
        return self.out(self.enc(self.emb(ids)))


def checkpoint(folder, epoch, model, optimizer):
    gatherer = StateGatherer(optimizer, epoch)
    shapes = gatherer.summary()
    torch.save({"epoch": epoch, "flat": shapes}, os.path.join(folder, f"epoch{epoch}.pt"))


def main():
    torch.manual_seed(1)
    model = Tagger().cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    loss_fn = nn.CrossEntropyLoss()
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(12):
            running = 0.0
            for _ in range(8):
                ids = torch.randint(0, 4000, (12, 48), device="cuda")
                tags = torch.randint(0, 40, (12, 48), device="cuda")
                loss = loss_fn(model(ids).flatten(0, 1), tags.flatten())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                running += loss.item()
            checkpoint(folder, epoch, model, optimizer)
            print(f"epoch {epoch}: {running / 8:.4f}")


if __name__ == "__main__":
    main()
