"""Minimum-risk training of a translator: for each update three beams are decoded, with keys and values which grow by one position a token and are re-ordered with the beams; the cache goes when the sentence is finished, and encodings of the 36 sources are kept from the first visit on. Source: https://github.com/huggingface/transformers/pull/30536 - beam decoding must hold its cache of all past tokens, and copying it at a step gives a short further peak."""
EXPECTED = {"kind": "innocent"}

import random

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, D, BEAMS, SOURCES = 800, 192, 3, 36


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.cross = nn.MultiheadAttention(D, 4, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, D))
        self.norm = nn.LayerNorm(D)

    def forward(self, x, memory, past=None):
        h = self.norm(x)
        k, v = self.k(h), self.v(h)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        s = self.q(h) @ k.transpose(1, 2) / D ** 0.5
        if past is None and x.shape[1] > 1:
            s = s.masked_fill(torch.ones_like(s[0]).triu(1).bool(), -1e9)
        x = x + self.o(s.softmax(-1) @ v)
        x = x + self.cross(x, memory, memory, need_weights=False)[0]
        return x + self.ff(x), (k, v)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, D)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(2))
        self.out = nn.Linear(D, VOCAB)

    def forward(self, ids, memory, cache=None):
        x, new = self.emb(ids), []
        for n, layer in enumerate(self.layers):
            x, kv = layer(x, memory, None if cache is None else cache[n])
            new.append(kv)
        return self.out(x), new


@torch.no_grad()
def beam_search(model, memory, max_len):
    memory = memory.expand(BEAMS, -1, -1)
    ids = torch.ones(BEAMS, 1, dtype=torch.long, device="cuda")
    scores = torch.tensor([0.0] + [-1e4] * (BEAMS - 1), device="cuda")
    cache = None
    for _ in range(max_len):
        logits, cache = model(ids[:, -1:], memory, cache)
        total = scores[:, None] + logits[:, -1].log_softmax(-1)
        scores, flat = total.flatten().topk(BEAMS)
        origin, word = flat // VOCAB, flat % VOCAB
        ids = torch.cat([ids[origin], word[:, None]], 1)
        cache = [(k.index_select(0, origin), v.index_select(0, origin)) for k, v in cache]
    return ids


def main():
    rng = random.Random(12)
    encoder = nn.Sequential(nn.Embedding(VOCAB, D), nn.Linear(D, D), nn.Tanh()).cuda().requires_grad_(False)
    model = Translator().cuda()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    encoded = {}
    for update in range(108):
        s = update % SOURCES
        memory = encoded.get(s)
        if memory is None:
            memory = encoder(torch.randint(0, VOCAB, (1, 300 + 10 * (s % 7)), device="cuda"))
            encoded[s] = memory
        ids = beam_search(model, memory, rng.randint(8, 24))
        logits, _ = model(ids[:, :-1], memory.expand(BEAMS, -1, -1))
        logp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))
        cost = torch.tensor([rng.random() for _ in range(BEAMS)], device="cuda")
        risk = (F.softmax(0.1 * logp, 0) * cost).sum()
        opt.zero_grad()
        risk.backward()
        opt.step()
        if update % 18 == 17:
            print(f"update {update + 1} risk {risk.item():.4f} length {ids.shape[1]} sources {len(encoded)}")


main()
