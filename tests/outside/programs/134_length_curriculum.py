"""A language model under Accelerate begins with sequences of 16 tokens and gets 20 more every 6 steps up to 196, where it stays for the other half of the run; beside it a memory bank of fixed size is filled by index. Source: https://github.com/KaijuML/data-to-text-hierarchical/issues/7 - usage that increases during training was explained by ever larger batches; it has an upper limit, which is reached with the largest one."""
EXPECTED = {"kind": "innocent"}

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator

VOCAB, DIM, BATCH = 1200, 160, 6


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.o = nn.Linear(DIM, 3 * DIM, bias=False), nn.Linear(DIM, DIM, bias=False)
        self.mlp = nn.Sequential(nn.Linear(DIM, 4 * DIM), nn.GELU(), nn.Linear(4 * DIM, DIM))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (u.view(b, t, 4, -1).transpose(1, 2) for u in self.qkv(self.ln1(x)).chunk(3, -1))
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        scores = scores + torch.full((t, t), float("-inf"), device=x.device).triu(1)
        x = x + self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, -1))
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Embedding(256, DIM)
        self.layers = nn.Sequential(*(Layer() for _ in range(depth)))
        self.norm = nn.LayerNorm(DIM)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        h = self.norm(self.layers(h))
        return h, h @ self.tok.weight.t()


def schedule(total):
    for step in range(total):
        yield step, min(196, 16 + 20 * (step // 6))


def main():
    accelerator = Accelerator()
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    bank = torch.zeros(512, DIM, device=accelerator.device)
    filled = 0

    for step, length in schedule(120):
        ids = torch.randint(0, VOCAB, (BATCH, length + 1), device=accelerator.device)
        h, logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if filled >= 64:
            sims = F.normalize(h.mean(1), dim=-1) @ bank[:min(filled, 512)].t()
            loss = loss + 0.01 * sims.logsumexp(-1).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        slots = (torch.arange(BATCH, device=accelerator.device) + filled) % 512
        bank[slots] = F.normalize(h.mean(1), dim=-1).detach()
        filled += BATCH
        if step % 20 == 19:
            accelerator.print(f"step {step + 1} length {length} bank {min(filled, 512)} loss {loss.item():.3f}")


main()
