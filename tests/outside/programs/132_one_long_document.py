"""A GPT-2 is tuned on texts of up to 150 tokens with eager attention, and one document of 1900 tokens was not truncated: its batch is padded to that length, and the attention scores, which grow with the square of the length, do not fit any more. Source: https://github.com/meta-llama/llama-cookbook/issues/792 - jumps in allocated memory come from batches with longer sequences, and the failure comes when a still longer one is met."""
EXPECTED = {
    "kind": "oom",
    "memory": "1GiB",
    "cause": ["attention", "sequence_length", "activations"],
    "mentions": [["sequence", "length", "attention", "truncat", "long"]],
}

import random

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(77)
PAD = 0


def corpus(n):
    texts = [torch.randint(1, 3000, (random.randint(40, 150),)) for _ in range(n)]
    texts[137] = torch.randint(1, 3000, (1900,))        # someone pasted a whole manual
    return texts


def collate(rows):
    ids = pad_sequence(rows, batch_first=True, padding_value=PAD)
    mask = (ids != PAD).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(ids == PAD, -100)}


model = GPT2LMHeadModel(GPT2Config(
    vocab_size=3000, n_positions=2048, n_embd=128, n_layer=4, n_head=8, attn_implementation="eager",
)).cuda()
loader = torch.utils.data.DataLoader(corpus(240), batch_size=4, shuffle=False, collate_fn=collate)
opt = torch.optim.AdamW(model.parameters(), lr=3e-4)

model.train()
for step, batch in enumerate(loader):
    batch = {k: v.cuda() for k, v in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    opt.step()
    opt.zero_grad()
    if step % 10 == 0:
        print(step, "width", batch["input_ids"].shape[1], "loss", loss.item())
