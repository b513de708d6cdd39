"""Adapters of PEFT on a frozen GPT-2, with the Trainer. HAND names the changes that are made in its arguments."""

import os
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

HAND = os.environ.get("HAND", "").split(",")
config = GPT2Config(n_layer=3, n_head=4, n_embd=128, vocab_size=1000, n_positions=128)
model = get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True))
rows = [{"input_ids": [1] * 128, "labels": [1] * 128} for _ in range(64)]
with tempfile.TemporaryDirectory() as folder:
    parts = 2 if "accumulation" in HAND else 1
    arguments = TrainingArguments(
        folder,
        max_steps=int(os.environ.get("STEPS", "100")),
        per_device_train_batch_size=8 // parts,
        gradient_accumulation_steps=parts,
        bf16="bf16_autocast" in HAND,
        gradient_checkpointing="checkpointing" in HAND,
        optim="adamw_bnb_8bit" if "eight_bit_optimizer" in HAND else "adamw_torch_fused",
        report_to=[],
        save_strategy="no",
    )
    Trainer(model, arguments, train_dataset=rows).train()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
