"""A summarizer trains with small batches; its validation decodes with beam search, and the encoder's keys and values are cached once per beam, in every decoder layer. Source: https://github.com/facebookresearch/fairseq/issues/1957 - beam search duplicates the encoder state for every beam and keeps it on the GPU during incremental decoding; without the copies memory fell to a quarter with four beams."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["evaluation", "activations"],
            "mentions": [["beam", "batch", "generat", "cache", "decod", "validation", "evaluat", "key"]]}

# Arithmetic: encoder output of validation: 16 documents x 1024 tokens x 1024 x 4 bytes = 64 MiB; times 8 beams = 512 MiB.
# Every decoder layer keeps keys and values of it: 2 x 512 MiB. Weights and moments about 450 MiB, so that the
# third of six layers does not fit in 3666 MiB. Training with 1 document needs about 1 GiB.
import torch
import torch.nn as nn
import torch.nn.functional as F

DIM, WORDS, SRC = 1024, 8000, 1024


class CrossLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(DIM, DIM, bias=False)
        self.key = nn.Linear(DIM, DIM, bias=False)
        self.value = nn.Linear(DIM, DIM, bias=False)
        self.norm = nn.LayerNorm(DIM)

    def remember(self, memory):
        return self.key(memory), self.value(memory)  # <- here

    def forward(self, x, kept):
        k, v = kept
        return self.norm(x + F.scaled_dot_product_attention(self.query(x), k, v))


class Summarizer(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.words = nn.Embedding(WORDS, DIM)
        self.encoder = nn.Linear(DIM, DIM)
        self.layers = nn.ModuleList(CrossLayer() for _ in range(layers))

    def encode(self, src):
        return torch.tanh(self.encoder(self.words(src)))

    def decode(self, tokens, kept):
        x = self.words(tokens)
        for layer, pair in zip(self.layers, kept):
            x = layer(x, pair)
        return x @ self.words.weight.t()

    def forward(self, src, tgt):
        memory = self.encode(src)
        return self.decode(tgt, [layer.remember(memory) for layer in self.layers])


@torch.no_grad()
def beam_search(model, src, beams=8, steps=20):
    memory = model.encode(src).repeat_interleave(beams, dim=0)  # <- here
    kept = [layer.remember(memory) for layer in model.layers]  # <- here
    tokens = torch.zeros(src.size(0) * beams, 1, dtype=torch.long, device=src.device)
    scores = torch.zeros(src.size(0), beams, device=src.device)
    for _ in range(steps):
        logp = model.decode(tokens[:, -1:], kept)[:, -1].log_softmax(-1)
        total = (scores.view(-1, 1) + logp).view(src.size(0), -1)
        scores, flat = total.topk(beams)
        word = flat % WORDS
        tokens = torch.cat([tokens, word.view(-1, 1)], dim=1)
    return tokens


model = Summarizer().cuda()
opt = torch.optim.Adam(model.parameters(), lr=1e-4)
for step in range(1, 41):
    src = torch.randint(0, WORDS, (1, SRC), device="cuda")
    tgt = torch.randint(0, WORDS, (1, 65), device="cuda")
    loss = F.cross_entropy(model(src, tgt[:, :-1]).flatten(0, 1), tgt[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0:
        docs = torch.randint(0, WORDS, (16, SRC), device="cuda")
        print("step", step, "loss", loss.item(), "summaries", tuple(beam_search(model, docs).shape))
