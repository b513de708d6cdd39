"""A decoder trained on sentences of all lengths: causal masks are memoised in a module-level dictionary keyed by lanes and length, and nothing is ever dropped, so nearly every batch adds another mask. Source: https://github.com/CanReader/FastNN/issues/16 - established that the causal mask cache grows without bound because its key includes the lengths and entries never leave."""
EXPECTED = {"kind": "leak", "holder": ["_MASKS"], "growing": True}

import math
import random

import torch
from torch import nn

_MASKS = {}


def causal_mask(lanes, q_len, kv_len, device):
    key = (lanes, q_len, kv_len, str(device))
    if key not in _MASKS:
        m = torch.ones(q_len, kv_len, device=device).tril(kv_len - q_len)
        _MASKS[key] = (1.0 - m).mul(-1e9).expand(lanes, q_len, kv_len).contiguous()  # <- here
    return _MASKS[key]


class CausalAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = (t.reshape(B * self.heads, T, -1) for t in (q, k, v))
        att = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])
        att = att + causal_mask(B * self.heads, T, T, x.device)
        y = att.softmax(-1) @ v
        return self.proj(y.view(B, self.heads, T, -1).transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = CausalAttention(dim, heads)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


def main():
    rng = random.Random(0)
    vocab = 3000
    model = nn.Sequential(nn.Embedding(vocab, 256), Layer(256, 4), Layer(256, 4), nn.Linear(256, vocab)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    lengths = rng.sample(range(96, 240), 90)
    for n, length in enumerate(lengths, 1):
        tokens = torch.randint(0, vocab, (6, length + 1)).cuda()
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.reshape(-1, vocab), tokens[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if n % 30 == 0:
            print(n, "batches, last length", length, "loss", loss.item())


main()
