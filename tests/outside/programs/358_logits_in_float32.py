"""A language model with 128,000 words: the logits of all positions are converted to 32 bits for the loss. Pattern: fine-tuning with a large vocabulary."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["activations"],
            "mentions": [["logits", "batch", "rows", "micro"]]}

# Logits: 3072 x 128,000 x 2 bytes = 750 MiB, twice that in 32 bits, the log-probabilities as much, and their gradients.
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, words=128_000, dim=512):
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.body = nn.TransformerEncoderLayer(dim, 8, 2048, batch_first=True, dropout=0.0)
        self.head = nn.Linear(dim, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids, labels):
        logits = self.head(self.body(self.embed(ids)))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


model = Model().cuda().bfloat16()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(5):
    ids = torch.zeros(6, 512, dtype=torch.long, device="cuda")
    loss = model(ids, ids)
    loss.backward()
    opt.step()
    opt.zero_grad()
