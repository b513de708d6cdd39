"""A small decoder in bfloat16 has a vocabulary of 152064 words, and its logits are made float32 for the loss: at 768 tokens this one tensor takes 445 MiB, beside the bfloat16 one, and cross entropy wants as much again. Source: https://github.com/QwenLM/Qwen3/issues/570 - users found that logits.float() before the loss costs much more GPU memory; the maintainers keep it for stability in training."""
EXPECTED = {
    "kind": "oom",
    "memory": "1GiB",
    "cause": ["logits", "activations"],
    "mentions": [["logits", "vocab", "float32", "cross_entropy", "cross entropy"]],
}

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, D = 152064, 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.ff = nn.Sequential(nn.Linear(D, 4 * D), nn.SiLU(), nn.Linear(4 * D, D))

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, 2, D // 2).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, D))
        return x + self.ff(self.n2(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(D)

    def forward(self, ids, labels):
        h = self.embed(ids)
        for b in self.blocks:
            h = b(h)
        logits = self.norm(h) @ self.embed.weight.t()
        logits = logits.float()                      # for a stable loss
        return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))


model = Decoder().to(torch.bfloat16).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
for tokens in [32] * 8 + [768] * 4:                  # short warm-up, then the real length
    ids = torch.randint(0, VOCAB, (1, tokens), device="cuda")
    loss = model(ids, ids)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(tokens, loss.item())
