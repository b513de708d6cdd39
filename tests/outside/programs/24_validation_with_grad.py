"""A patch model trains within the card, then the validation of the epoch, with a bigger batch and no torch.no_grad(), keeps all activations for a backward pass that never comes and dies. Source: https://github.com/hszhao/semseg/issues/60 - out of memory during validation, solved by putting the forward pass under torch.no_grad()."""
EXPECTED = {"kind": "oom", "memory": "3G", "cause": ["activations"],
            "mentions": [["no_grad", "inference_mode"]]}

# Arithmetic: one block saves two (B,1024,512) float tensors = 4 MiB per sample; 24 blocks = 96 MiB
# per sample. Training with B=8: 768 MiB + 24x1 MiB weights, fits. Validation with B=64: 6144 MiB
# > 3072 MiB. With no_grad only about three tensors of 128 MiB live at a time: fits.
import torch
import torch.nn as nn


class MixBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, d)

    def forward(self, x):
        return nn.functional.gelu(self.fc(x))


class PatchNet(nn.Module):
    def __init__(self, d=512, depth=24, classes=19):
        super().__init__()
        self.blocks = nn.Sequential(*[MixBlock(d) for _ in range(depth)])
        self.cls = nn.Linear(d, classes)

    def forward(self, x):
        return self.cls(self.blocks(x))


def loader(n, batch):
    for _ in range(n):
        yield (torch.randn(batch, 1024, 512, device="cuda"),
               torch.zeros(batch, 1024, dtype=torch.long, device="cuda"))


def train_epoch(model, optimizer):
    model.train()
    for x, y in loader(10, 8):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def validate(model):
    model.eval()
    total = 0.0
    for x, y in loader(4, 64):
        output = model(x)
        total += nn.functional.cross_entropy(output.flatten(0, 1), y.flatten()).item()
    return total / 4


model = PatchNet().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for epoch in range(4):
    print("train", train_epoch(model, optimizer))
    print("val", validate(model))
