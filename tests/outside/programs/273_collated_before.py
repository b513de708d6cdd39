"""A collate function keeps each batch that it has put together on the device, by the numbers of its examples; they are shuffled, so that no batch comes twice. 64 KiB a step. Pattern: caches in collate functions."""
EXPECTED = {"kind": "leak", "holder": ["done", "Collate", "collate"], "growing": True}

import torch
from torch import nn
from torch.utils.data import DataLoader


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        return (index, torch.full((512,), float(index)))


class Collate:
    def __init__(self, device):
        self.device, self.done = device, {}

    def __call__(self, examples):
        key = tuple(number for number, _ in examples)
        if key not in self.done:
            self.done[key] = torch.stack([example for _, example in examples]).to(self.device)  # <- here
        return self.done[key]


loader = DataLoader(Numbers(), batch_size=32, shuffle=True, collate_fn=Collate("cuda"))
net = nn.Sequential(nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 512)).cuda()
opt = torch.optim.Adam(net.parameters())
for epoch in range(8):
    for x in loader:
        loss = nn.functional.l1_loss(net(x), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
