"""A vision transformer of Transformers in a plain loop. HAND names the changes that are made in the code."""

import contextlib
import os

import torch
from by_hand import optimizer_class, sharded  # beside this file
from transformers import ViTConfig, ViTForImageClassification

HAND = os.environ.get("HAND", "").split(",")
config = ViTConfig(hidden_size=128, num_hidden_layers=3, num_attention_heads=4, intermediate_size=512, image_size=64)
config.patch_size, config.num_labels = 8, 10
config._attn_implementation = "sdpa" if "sdpa" in HAND else "eager"
model = ViTForImageClassification(config).cuda().train()
if "checkpointing" in HAND:
    model.gradient_checkpointing_enable()
sharded(model, model.vit.layers)
options = {"foreach": False} if "single_tensor_optimizer" in HAND else {}
optimizer = optimizer_class("AdamW")(model.parameters(), **options)
for _ in range(int(os.environ.get("STEPS", "100"))):
    images, labels = torch.zeros(16, 3, 64, 64, device="cuda"), torch.zeros(16, dtype=torch.long, device="cuda")
    context = torch.autocast("cuda", dtype=torch.bfloat16) if "bf16_autocast" in HAND else contextlib.nullcontext()
    with context:
        loss = torch.nn.functional.cross_entropy(model(images).logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
