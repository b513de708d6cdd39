"""A text encoder is trained on token-bucketed batches sorted from short to long, so that memory in use climbs for a whole epoch and starts low again in the next one; nothing is kept. Source: https://github.com/KaijuML/data-to-text-hierarchical/issues/7 - the author established that bigger batches need more memory, that torch keeps the blocks for re-use, and that the upper limit is the biggest batch."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn

torch.manual_seed(1)
VOCAB, DIM = 5000, 192

embed = nn.Embedding(VOCAB, DIM).cuda()
layer = nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, batch_first=True, dropout=0.0).cuda()
head = nn.Linear(DIM, VOCAB).cuda()
params = [*embed.parameters(), *layer.parameters(), *head.parameters()]
opt = torch.optim.AdamW(params, lr=1e-4)

lengths = sorted(int(n) for n in torch.randint(16, 160, (55,)))
for epoch in range(2):
    total = 0.0
    for n in lengths:
        tokens = torch.randint(0, VOCAB, (8, n), device="cuda")
        logits = head(layer(embed(tokens)))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print("epoch", epoch, total / len(lengths), torch.cuda.memory_reserved() // 2**20, "MiB reserved")
