"""Batches are grouped by length and the longest one is put first, so the very first step takes almost the whole card and all later ones far less, while the reserved memory stays where the first step left it. Source: https://github.com/huggingface/transformers/issues/13794 - the length-grouped sampler serves the longest examples first on purpose: if memory does not suffice, the error comes at once and not in mid-training."""
EXPECTED = {"kind": "innocent", "memory": "6G"}

# Arithmetic: GPT-2 with 6 layers of 512: 30 million weights = 115 MiB, with gradients and moments 0.5 GiB. Logits of 4 x 1024
# tokens x 20,000 words x 4 bytes = 312 MiB, a few copies; eager attention 4 x 8 x 1024^2 x 4 = 128 MiB, about 4 per
# layer kept. The longest batch peaks at about 4.2 of 5.6 GiB, the others (128 to 700 tokens) at a third of it or less.
import random

import torch
from torch.utils.data import DataLoader, Sampler
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(3)


class LengthGrouped(Sampler):
    def __init__(self, lengths, batch_size):
        order = sorted(range(len(lengths)), key=lambda i: lengths[i], reverse=True)
        self.batches = [order[i:i + batch_size] for i in range(0, len(order), batch_size)]
        rest = self.batches[1:]
        random.shuffle(rest)
        self.batches = self.batches[:1] + rest

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


def collate(texts):
    width = max(len(t) for t in texts)
    ids = torch.zeros(len(texts), width, dtype=torch.long)
    for row, t in enumerate(texts):
        ids[row, :len(t)] = t
    return ids


lengths = [1024, 1010, 1000, 990] + [random.randint(128, 700) for _ in range(116)]
texts = [torch.randint(1, 20_000, (n,)) for n in lengths]
loader = DataLoader(texts, batch_sampler=LengthGrouped(lengths, 4), collate_fn=collate)

config = GPT2Config(vocab_size=20_000, n_positions=1024, n_embd=512, n_layer=6, n_head=8, attn_implementation="eager")
model = GPT2LMHeadModel(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
model.train()
for step, ids in enumerate(loader):
    ids = ids.cuda()
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 5 == 0:
        print(step, tuple(ids.shape), loss.item())
