"""GPT-2 of Transformers in a plain loop, with eager attention. HAND names the changes that are made in the code."""

import contextlib
import os

import torch
from by_hand import optimizer_class, sharded  # beside this file
from transformers import GPT2Config, GPT2LMHeadModel

HAND = os.environ.get("HAND", "").split(",")
attention = "sdpa" if "sdpa" in HAND else "eager"
config = GPT2Config(n_layer=3, n_head=4, n_embd=128, vocab_size=1000, n_positions=128, attn_implementation=attention)
model = GPT2LMHeadModel(config).cuda().train()
if "checkpointing" in HAND:
    model.gradient_checkpointing_enable()
sharded(model, model.transformer.h)
options = {"fused": True} if "fused_optimizer" in HAND else {}
optimizer = optimizer_class("AdamW")(model.parameters(), lr=1e-3, **options)
for _ in range(int(os.environ.get("STEPS", "100"))):
    x = torch.zeros(8, 128, dtype=torch.long, device="cuda")
    if "bf16_autocast" in HAND:
        context = torch.autocast("cuda", dtype=torch.bfloat16)
    else:
        context = contextlib.nullcontext()
    with context:
        loss = model(input_ids=x, labels=x).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
