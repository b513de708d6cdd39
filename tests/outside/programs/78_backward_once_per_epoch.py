"""Speech separation: the losses of all batches are summed and backward is called once at the end of the epoch, so the activations of every batch stay until then. Source: https://github.com/speechLabBcCuny/onssen/issues/5 - saving the losses of the batches and calling backward once per epoch makes the memory explode; backward belongs in every batch (freeing graphs early: https://github.com/filipradenovic/cnnimageretrieval-pytorch/issues/20)."""
EXPECTED = {"kind": "oom", "memory": "4G", "cause": ["leak", "activations"],
            "holder": ["epoch_loss", "loss", "total"],
            "mentions": [["backward", "graph", "epoch_loss", "accumulat", "detach", "item", "each batch", "every batch"]]}

# Arithmetic: a batch is 16 x 400 frames; 7 tanh outputs of 16 x 400 x 1024 x 4 bytes = 25 MiB each are kept, the masks (6 MiB)
# and about 8 maps of 16 x 400 x 129 x 4 bytes = 3 MiB in the loss: about 0.2 GiB per batch. Weights 26 MiB.
# An epoch has 40 batches = 8 GiB > 4096 - 430 = 3666 MiB: dies in about the 17th batch, before the first backward.
import torch
from torch import nn

BINS, DIM = 129, 1024


class MaskNet(nn.Module):
    def __init__(self, layers=6):
        super().__init__()
        self.inp = nn.Linear(BINS, DIM)
        self.hidden = nn.ModuleList([nn.Linear(DIM, DIM) for _ in range(layers)])
        self.masks = nn.Linear(DIM, 2 * BINS)

    def forward(self, mix):
        h = torch.tanh(self.inp(mix))
        for layer in self.hidden:
            h = torch.tanh(layer(h))  # <- here
        return self.masks(h).sigmoid().chunk(2, dim=-1)


def separation_loss(masks, mix, sources):
    a, b = (m * mix for m in masks)
    straight = (a - sources[0]).abs().mean((1, 2)) + (b - sources[1]).abs().mean((1, 2))
    crossed = (a - sources[1]).abs().mean((1, 2)) + (b - sources[0]).abs().mean((1, 2))
    return torch.minimum(straight, crossed).mean()


def batches(n):
    for _ in range(n):
        sources = torch.rand(2, 16, 400, BINS)
        yield sources.sum(0).cuda(), sources.cuda()


net = MaskNet().cuda()
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4)
for epoch in range(5):
    optimizer.zero_grad()
    epoch_loss = 0
    for mix, sources in batches(40):
        loss = separation_loss(net(mix), mix, sources)  # <- here
        epoch_loss = epoch_loss + loss  # <- here
    epoch_loss.backward()
    optimizer.step()
    print("epoch", epoch, epoch_loss.item() / 40)
