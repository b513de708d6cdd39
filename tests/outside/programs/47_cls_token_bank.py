"""A small vision transformer stores the class token of each batch for a nearest-neighbour check at the end; the stored slice is a view, so the full token sequence of every batch stays with it. Source: https://github.com/ViCCo-Group/thingsvision/pull/150 - established that extracting only the cls token leaked because it is a view on the tensor, and that a clone is needed."""
EXPECTED = {"kind": "leak", "holder": ["cls_bank"], "growing": True}

import torch
import torch.nn as nn


class PatchTransformer(nn.Module):
    def __init__(self, patches=64, patch_dim=48, dim=256, depth=3, classes=100):
        super().__init__()
        self.embed = nn.Linear(patch_dim, dim)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, patches + 1, dim))
        enc = nn.TransformerEncoderLayer(dim, 4, 512, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(enc, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def tokens(self, patches):
        x = self.embed(patches)
        x = torch.cat([self.cls.expand(x.size(0), -1, -1), x], dim=1) + self.pos
        return self.encoder(x)

    def forward(self, patches):
        t = self.tokens(patches)  # <- here
        return self.head(t.mean(1)), t


# %% set up
model = PatchTransformer().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
cls_bank, label_bank = [], []

# %% train
for it in range(80):
    patches = torch.randn(32, 64, 48, device="cuda")
    y = torch.randint(0, 100, (32,))
    logits, tokens = model(patches)
    loss = nn.functional.cross_entropy(logits, y.cuda(), label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    warmup.step()

    cls_bank.append(tokens.detach()[:, 0])  # <- here
    label_bank.append(y)
    if it % 40 == 39:
        print(f"it {it + 1} loss {loss.item():.3f} bank {sum(len(b) for b in cls_bank)}")

# %% nearest neighbours of the last batch in the bank
bank = nn.functional.normalize(torch.cat(cls_bank[:-1]), dim=1)
query = nn.functional.normalize(cls_bank[-1], dim=1)
nearest = (query @ bank.t()).argmax(1).cpu()
print("agreement", (torch.cat(label_bank[:-1])[nearest] == label_bank[-1]).float().mean().item())
