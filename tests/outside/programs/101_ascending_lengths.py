"""A small BERT tagger is trained on utterances sorted from the shortest to the longest, so within each of two epochs the activations and logits get larger up to the longest utterance, and the second epoch starts small again; nothing outlives its step but the last batch and its output. Source: https://github.com/speechbrain/speechbrain/issues/841 - a report of ever-increasing memory; the maintainers answered that usage follows the sequence length and that this is expected with sorting=ascending."""
EXPECTED = {"kind": "innocent"}

import random

import torch
from transformers import BertConfig, BertForTokenClassification

random.seed(11)
NUM_TAGS = 700
BATCH = 8

config = BertConfig(
    vocab_size=6000, hidden_size=192, num_hidden_layers=3, num_attention_heads=4,
    intermediate_size=512, max_position_embeddings=512, num_labels=NUM_TAGS,
)
model = BertForTokenClassification(config).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5)

lengths = sorted(int(random.triangular(24, 420, 110)) for _ in range(60 * BATCH))
batches = [lengths[i:i + BATCH] for i in range(0, len(lengths), BATCH)]

model.train()
total = 0.0
for step, lens in enumerate(batches * 2):
    width = max(lens)
    ids = torch.randint(0, 6000, (BATCH, width), device="cuda")
    tags = torch.randint(0, NUM_TAGS, (BATCH, width), device="cuda")
    out = model(input_ids=ids, labels=tags)
    optimizer.zero_grad()
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    total += out.loss.item()
    if (step + 1) % 20 == 0:
        print(f"batch {step + 1}/{2 * len(batches)}  longest {width}  avg loss {total / (step + 1):.3f}")
