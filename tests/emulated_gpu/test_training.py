"""A training's memory on the emulated GPU against arithmetic by hand."""

from __future__ import annotations

import pytest
import torch
from torch import nn


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16"])
def test_a_transformers_memory_is_what_arithmetic_gives(autocast):
    """AdamW in fp32: 12 bytes a parameter (weights, two moments) plus what autograd saved after the forward pass, and
    16 with the gradients after the step. What autograd saved is counted by hooks, apart from the allocator."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    layer = {"d_model": 512, "nhead": 8, "dim_feedforward": 2048, "dropout": 0.0, "batch_first": True, "device": "cuda"}
    model = nn.Sequential(*[nn.TransformerEncoderLayer(**layer) for _ in range(4)])
    optimizer = torch.optim.AdamW(model.parameters())
    parameters = sum(p.numel() for p in model.parameters())
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}

    for _ in range(2):
        x = torch.empty(4, 512, 512, device="cuda")
        saved = {}

        def remember(tensor, saved=saved):
            storage = tensor.untyped_storage()
            saved[storage.data_ptr()] = storage.nbytes()
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor)
        with hooks, torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = model(x).float().sum()
        after_forward = torch.cuda.memory_allocated() - before
        loss.backward()
        del loss
        optimizer.step()
        after_step = torch.cuda.memory_allocated() - before
        optimizer.zero_grad()

    activations = sum(size for at, size in saved.items() if at not in own)
    workspaces = 80 << 20  # cuBLAS and cuBLASLt, which PyTorch allocates once
    assert 0 <= after_forward - (12 * parameters + activations) <= workspaces
    assert 0 <= after_step - 16 * parameters <= workspaces
