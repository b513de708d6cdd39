"""Street-scene segmentation trains well with cross entropy; when the skeleton loss is switched on after the warm-up, each of its morphological iterations keeps its pooling inputs and indices for the backward pass and the card is full. Source: https://github.com/jocpae/clDice/issues/13 - at 2048x1024 even batch 1 ran out of memory in the loop of soft_skel; the author: the skeletonization is sequential and every iteration adds memory, so use fewer iterations or patches."""
EXPECTED = {"kind": "oom", "memory": "8G", "cause": ["activations"],
            "mentions": [["skel", "iteration", "pool", "erode", "loop", "patch", "crop", "resolution", "checkpoint", "image size"]]}

# Arithmetic: 19 classes x 512 x 1024 x 4 bytes = 38 MiB per map at batch 1, 76 MiB at batch 2; the indices of max_pool2d
# are 8 bytes: 152 MiB. An iteration erodes twice and dilates once (5 poolings): 5 x (76 + 152) MiB and about
# 8 more maps of 76 MiB = 1.7 GiB. Cross entropy alone peaks below 2 GiB; 7762 MiB are full around the 4th iteration of 12.
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES, HEIGHT, WIDTH = 19, 512, 1024


def erode(img):
    a = -F.max_pool2d(-img, (3, 1), 1, (1, 0))  # <- here
    b = -F.max_pool2d(-img, (1, 3), 1, (0, 1))  # <- here
    return torch.min(a, b)  # <- here


def dilate(img):
    return F.max_pool2d(img, 3, 1, 1)  # <- here


def skeleton(img, rounds):
    skel = F.relu(img - dilate(erode(img)))  # <- here
    for _ in range(rounds):
        img = erode(img)  # <- here
        delta = F.relu(img - dilate(erode(img)))  # <- here
        skel = skel + F.relu(delta - skel * delta)  # <- here
    return skel


def centreline_loss(logits, target, rounds=12):
    prob = logits.softmax(1)
    truth = F.one_hot(target, CLASSES).movedim(-1, 1).float()
    skel_pred = skeleton(prob, rounds)  # <- here
    skel_true = skeleton(truth, rounds)
    precision = (skel_pred * truth).sum() / (skel_pred.sum() + 1)
    recall = (skel_true * prob).sum() / (skel_true.sum() + 1)
    return 1 - 2 * precision * recall / (precision + recall + 1e-6)


class SegNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
                                 nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU())
        self.dec = nn.Conv2d(64, CLASSES, 1)

    def forward(self, x):
        return F.interpolate(self.dec(self.enc(x)), size=x.shape[-2:], mode="bilinear", align_corners=False)


net = SegNet().cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
WARMUP = 10
for it in range(30):
    image = torch.randn(2, 3, HEIGHT, WIDTH, device="cuda")
    mask = torch.randint(0, CLASSES, (2, HEIGHT, WIDTH), device="cuda")
    logits = net(image)
    loss = F.cross_entropy(logits, mask)
    if it >= WARMUP:
        loss = loss + 0.5 * centreline_loss(logits, mask)  # <- here
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(it, loss.item())
