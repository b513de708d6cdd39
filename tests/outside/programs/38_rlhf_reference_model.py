"""Supervised warm-up of a policy, then RLHF in the same process: the trainer makes a frozen reference copy of the policy for the KL term and the card is full. Source: https://github.com/huggingface/trl/issues/1444 - the thread: the PPO trainer copies the initial model for the KL term, which costs the memory of a second model; adapters avoid the copy (also /issues/1245)."""
EXPECTED = {"kind": "oom", "memory": "5G", "cause": ["weights"],
            "mentions": [["reference", "ref_model", "ref model", "deepcopy", "second model", "copy of the", "create_reference"]]}

# Arithmetic: W = 14 layers x 100 MiB = 1400 MiB. After the warm-up: weights + gradients + momentum
# = 4200 MiB, fits (usable >= 4620). The reference copy makes 5600 MiB > 5120 MiB: dies in deepcopy.
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

WIDTH = 5120


class PolicyWithValue(nn.Module):
    def __init__(self, depth=14):
        super().__init__()
        self.trunk = nn.ModuleList([nn.Linear(WIDTH, WIDTH, bias=False, device="cuda") for _ in range(depth)])
        self.v_head = nn.Linear(WIDTH, 1, device="cuda")

    def forward(self, h):
        for layer in self.trunk:
            h = F.silu(layer(h))
        return h, self.v_head(h).squeeze(-1)


def create_reference_model(model):
    ref = copy.deepcopy(model)
    for p in ref.parameters():
        p.requires_grad = False
    return ref.eval()


class PPOTrainer:
    def __init__(self, model, optimizer, kl_coef=0.1):
        self.model, self.optimizer, self.kl_coef = model, optimizer, kl_coef
        self.ref_model = create_reference_model(model)

    def step(self, queries, rewards):
        logits, values = self.model(queries)
        with torch.no_grad():
            ref_logits, _ = self.ref_model(queries)
        kl = F.kl_div(logits.log_softmax(-1), ref_logits.log_softmax(-1), log_target=True, reduction="batchmean")
        loss = (values - rewards).pow(2).mean() + self.kl_coef * kl
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


policy = PolicyWithValue()
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-3, momentum=0.9)
for step in range(5):
    x = torch.randn(4, WIDTH, device="cuda")
    out, _ = policy(x)
    loss = F.mse_loss(out, x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("sft", step, loss.item())

trainer = PPOTrainer(policy, optimizer)
for step in range(40):
    print("ppo", step, trainer.step(torch.randn(4, WIDTH, device="cuda"), torch.randn(4, device="cuda")))
