"""Preference training loads the frozen reference in 32 bits beside the policy; weights, gradients and moments of the policy would fit alone. Pattern: DPO without adapters."""
EXPECTED = {"kind": "oom", "memory": "7G", "cause": ["weights", "optimizer"], "mentions": [["16 bits", "bf16", "host", "8-bit"]]}

import torch
from torch import nn


def decoder():
    return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(22)])


with torch.device("cuda"):
    policy, reference = decoder(), decoder().requires_grad_(False).eval()
opt = torch.optim.AdamW(policy.parameters(), lr=1e-6, foreach=False)
for step in range(5):
    x = torch.randn(16, 4096, device="cuda")
    with torch.no_grad():
        wanted = reference(x)
    loss = (policy(x) - wanted).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
