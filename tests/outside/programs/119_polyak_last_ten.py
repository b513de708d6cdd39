"""Evaluation with the average of the last ten weight snapshots (taken every 7 steps, kept in a deque with maxlen=10), together with the best-so-far copy, which is replaced and not added to: ten stairs, then level. Source: none, a common pattern (last-k checkpoint averaging)."""
EXPECTED = {"kind": "innocent"}

import copy
import random
from collections import deque

import torch
import torch.nn as nn

torch.manual_seed(1)
random.seed(1)


def snapshot(module):
    return {k: v.detach().clone() for k, v in module.state_dict().items()}


def averaged(snaps):
    keys = snaps[0].keys()
    return {k: torch.stack([s[k] for s in snaps]).mean(0) for k in keys}


class Seq(nn.Module):
    def __init__(self, vocab=3000, d=256):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.conv = nn.ModuleList(nn.Conv1d(d, d, 3, padding=1) for _ in range(4))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        for c in self.conv:
            h = h + torch.relu(c(h))
        return self.out(h.transpose(1, 2))


model = Seq().cuda()
shadow = copy.deepcopy(model).requires_grad_(False)
opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
last = deque(maxlen=10)
best = (None, None)

for step in range(1, 141):
    ids = torch.randint(0, 3000, (8, 41), device="cuda")
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.reshape(-1, 3000), ids[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()

    if step % 7 == 0:
        last.append(snapshot(model))
    if step % 35 == 0:
        shadow.load_state_dict(averaged(last))
        with torch.no_grad():
            valid = torch.randint(0, 3000, (8, 41), device="cuda")
            score = nn.functional.cross_entropy(shadow(valid[:, :-1]).reshape(-1, 3000), valid[:, 1:].reshape(-1)).item()
        bleu = 20 + step / 20 + random.random()      # from an outside scorer
        if best[0] is None or bleu > best[0]:
            best = (bleu, snapshot(shadow))
        print(f"{step}: averaged {len(last)} snapshots, valid {score:.3f}, best bleu {best[0]:.2f}")
