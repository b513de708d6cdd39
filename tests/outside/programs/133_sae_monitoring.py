"""A sparse autoencoder is trained with detailed monitoring: for every step each tenth code vector is put into the logs, and as a slice it keeps the whole code tensor on the GPU, while nobody empties the list. Source: https://github.com/KempnerInstitute/overcomplete/issues/5 - the logged codes grow without end on the GPU; the maintainer agreed and asked for a copy on the CPU."""
EXPECTED = {"kind": "leak", "holder": ["logs", "codes", "z"], "growing": True}

from collections import defaultdict

import torch
from torch import nn, optim


class TopKSAE(nn.Module):
    def __init__(self, d_in=256, n_concepts=1536, k=24):
        super().__init__()
        self.enc = nn.Linear(d_in, n_concepts)
        self.dictionary = nn.Parameter(torch.randn(n_concepts, d_in) / d_in ** 0.5)
        self.k = k

    def forward(self, x):
        pre = self.enc(x)
        top = pre.topk(self.k, dim=-1)
        z = torch.zeros_like(pre).scatter(-1, top.indices, top.values.relu())
        return z, z @ self.dictionary


def fill_logs(level, logs, model, z, loss):
    logs["loss"].append(loss.item())
    logs["l0"].append((z > 0).float().sum(-1).mean().item())
    if level >= 2:
        logs["codes"].append(z.detach()[::10])  # <- here
        logs["atom_norm"].append(model.dictionary.norm(dim=-1).mean().item())


def train_sae(model, batches, optimizer, monitoring=1):
    logs = defaultdict(list)
    for n, acts in enumerate(batches):
        z, rebuilt = model(acts)
        loss = (rebuilt - acts).square().mean() + 1e-4 * z.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        fill_logs(monitoring, logs, model, z, loss)
        if (n + 1) % 25 == 0:
            print(f"step {n + 1} loss {logs['loss'][-1]:.4f} l0 {logs['l0'][-1]:.1f}")
    return logs


def activations(count):
    basis = torch.randn(64, 256, device="cuda")
    for _ in range(count):
        yield torch.randn(120, 64, device="cuda").relu() @ basis


sae = TopKSAE().cuda()
history = train_sae(sae, activations(125), optim.Adam(sae.parameters(), lr=5e-4), monitoring=2)
print("final loss", history["loss"][-1])
