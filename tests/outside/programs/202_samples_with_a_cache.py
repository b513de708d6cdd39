"""Every fifteen steps a text is generated token by token; keys and values of the tokens so far grow while it is written, and are freed with it. Right: local to one generation."""
EXPECTED = {"kind": "innocent"}

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, past=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if past is not None:
            k, v = torch.cat([past[0], k], 1), torch.cat([past[1], v], 1)
        y = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=past is None)
        return x + self.out(y[:, 0]), (k, v)


blocks = nn.ModuleList(Block() for _ in range(4)).cuda()
embed = nn.Embedding(200, 256).cuda()
opt = torch.optim.Adam([*blocks.parameters(), *embed.parameters()], lr=1e-3)


@torch.no_grad()
def write(length=60):
    past = [None] * len(blocks)
    token = torch.zeros(8, 1, dtype=torch.long, device="cuda")
    for _ in range(length):
        h = embed(token)
        for number, block in enumerate(blocks):
            h, past[number] = block(h, past[number])
        token = (h @ embed.weight.t()).argmax(-1)
    return token


for step in range(90):
    ids = torch.randint(0, 200, (16, 65), device="cuda")
    h = embed(ids[:, :-1])
    for block in blocks:
        h, _ = block(h)
    loss = nn.functional.cross_entropy((h @ embed.weight.t()).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 14:
        write()
