"""GPT-2 with the Trainer of Transformers. HAND names the changes that are made in its arguments."""

import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

HAND = os.environ.get("HAND", "").split(",")
OPTIMIZERS = {"fused_optimizer": "adamw_torch_fused", "eight_bit_optimizer": "adamw_bnb_8bit"}
attention = "sdpa" if "sdpa" in HAND else "eager"
config = GPT2Config(n_layer=3, n_head=4, n_embd=128, vocab_size=1000, n_positions=128, attn_implementation=attention)
rows = [{"input_ids": [1] * 128, "labels": [1] * 128} for _ in range(64)]
with tempfile.TemporaryDirectory() as folder:
    accumulated = "accumulation" in HAND
    arguments = TrainingArguments(
        folder,
        max_steps=int(os.environ.get("STEPS", "100")),
        per_device_train_batch_size=4 if accumulated else 8,
        gradient_accumulation_steps=2 if accumulated else 1,
        bf16="bf16_autocast" in HAND,
        gradient_checkpointing="checkpointing" in HAND,
        optim=next((name for change, name in OPTIMIZERS.items() if change in HAND), "adamw_torch"),
        report_to=[],
        save_strategy="no",
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=rows).train()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
