"""The first step works; its big temporary is freed, the gradients and the momentum of all layers settle in that block, and in the second step the same temporary finds no block of its size, though enough memory is free in pieces. Source: https://github.com/pytorch/pytorch/issues/35901 - the segment of the large tensor of the first iteration was split by small live blocks, so it could be neither reused nor released, and half of the card could not be used."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["fragmentation"],
            "mentions": [["fragment", "expandable", "empty_cache", "split", "pieces", "contiguous", "chunk"]]}

# Arithmetic: 40 layers of 2048 x 2048 floats = 640 MiB of weights; the similarities are 22,000^2 x 4 = 1846 MiB.
# Step 1: 640 + 1846 = 2486 MiB reserved; then 640 MiB of gradients and 640 MiB of momentum are carved from the
# freed block. Step 2: alive are 640 + 640 = 1280 MiB, and 1280 + 1846 = 3126 MiB would fit in 3666 MiB. But the
# block is split by the momentum, and only 3666 - 2486 = 1180 MiB can still be had from the driver.
import torch
from torch import nn

CANDIDATES, DIM = 22_000, 2048


class Tower(nn.Module):
    def __init__(self, depth=40):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM, bias=False, device="cuda") for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x


@torch.no_grad()
def mine_hard_negatives(bank):
    similarity = bank @ bank.t()  # <- here
    return similarity.argmax(dim=1)


tower = Tower()
optimizer = torch.optim.SGD(tower.parameters(), lr=0.05, momentum=0.9, foreach=False)
for step in range(30):
    bank = torch.randn(CANDIDATES, 128, device="cuda")
    negative = mine_hard_negatives(bank)[:32]
    anchor = torch.randn(32, DIM, device="cuda")
    positive = anchor + 0.1 * torch.randn_like(anchor)
    far = torch.randn(32, DIM, device="cuda") + (negative % 7).float().unsqueeze(1)
    loss = nn.functional.triplet_margin_loss(tower(anchor), positive, far)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(step, loss.item())
