"""Convolutions. Workspaces of cuDNN are missing on the emulated GPU, so that these figures are lower bounds."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import nn

from published_programs import program

F = nn.functional


@program
def chain_of_convolutions() -> Mapping[str, float]:
    """Nine convolutions of one image of 1,024 pixels, from 1 to 256 channels and down again."""
    x = torch.randn(1, 1, 1024, 1024).cuda()
    channels = [1, 256, 128, 64, 32, 16, 8, 4, 2, 1]
    layers = [nn.Conv2d(a, b, 3, 1, 1).cuda() for a, b in itertools.pairwise(channels)]
    y = x
    for layer in layers:
        y = layer(y)
    result = y.mean()
    found = {"forward": torch.cuda.max_memory_allocated()}
    del x, y
    result.backward()
    return found | {"peak": torch.cuda.max_memory_allocated()}


def _conv(a: int, b: int, kernel: int, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    layer = nn.Conv2d(a, b, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(b), nn.ReLU(inplace=True))


class Bottleneck(nn.Module):
    def __init__(self, a: int, width: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.one, self.two = _conv(a, width, 1), _conv(width, width, 3, stride, dilation)
        self.three = nn.Sequential(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))
        self.beside: nn.Module = nn.Identity()
        if a != 4 * width or stride > 1:
            self.beside = nn.Sequential(nn.Conv2d(a, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.three(self.two(self.one(x)))
        return F.relu(y.add_(self.beside(x)), inplace=True)


class DilatedResNet50(nn.Module):
    """ResNet-50 with a deep stem whose last two stages are dilated: an eighth of the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(3, 32, 3, 2), _conv(32, 32, 3), _conv(32, 64, 3), nn.MaxPool2d(3, 2, 1))
        stages, a = [], 64
        for width, blocks, stride, dilation in ((64, 3, 1, 1), (128, 4, 2, 1), (256, 6, 1, 2), (512, 3, 1, 4)):
            first = dilation // 2 if dilation > 1 else 1  # the first block of a stage is dilated half as much
            layers = [Bottleneck(a, width, stride, first)]
            layers += [Bottleneck(4 * width, width, 1, dilation) for _ in range(blocks - 1)]
            stages.append(nn.Sequential(*layers))
            a = 4 * width
        self.stages = nn.ModuleList(stages)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found, x = [], self.stem(x)
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class PlainHead(nn.Module):
    def __init__(self, a: int, width: int, layers: int, *, joined: bool) -> None:
        super().__init__()
        self.convs = nn.Sequential(_conv(a, width, 3), *(_conv(width, width, 3) for _ in range(layers - 1)))
        self.joined = _conv(a + width, width, 3) if joined else None
        self.drop, self.last = nn.Dropout2d(0.1), nn.Conv2d(width, 19, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.convs(x)
        if self.joined is not None:
            y = self.joined(torch.cat([x, y], dim=1))
        return self.last(self.drop(y))


class PyramidHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.ModuleList(nn.Sequential(nn.AdaptiveAvgPool2d(n), _conv(2048, 512, 1)) for n in (1, 2, 3, 6))
        self.bottleneck, self.drop, self.last = _conv(4096, 512, 3), nn.Dropout2d(0.1), nn.Conv2d(512, 19, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [x, *(F.interpolate(pool(x), size=x.shape[2:], mode="bilinear") for pool in self.pools)]
        return self.last(self.drop(self.bottleneck(torch.cat(parts, dim=1))))


@program
def segmentation(head: str, *, benchmark: bool = False) -> Mapping[str, float]:
    """Train a segmentation network on two crops of 512 x 1024 pixels, with an auxiliary head."""
    torch.backends.cudnn.benchmark = benchmark
    with torch.device("cuda"):
        body = DilatedResNet50()
        top: nn.Module = PyramidHead() if head == "pspnet" else PlainHead(2048, 512, 2, joined=True)
        auxiliary = PlainHead(1024, 256, 1, joined=False)
    parameters = [p for part in (body, top, auxiliary) for p in part.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=0.0005, foreach=False)
    for _ in range(3):
        images = torch.empty(2, 3, 512, 1024).cuda()
        labels = torch.zeros(2, 512, 1024, dtype=torch.long).cuda()
        features = body(images)
        losses = []
        for part, feature, weight in ((top, features[3], 1.0), (auxiliary, features[2], 0.4)):
            logits = F.interpolate(part(feature), size=labels.shape[1:], mode="bilinear", align_corners=False)
            losses.append(weight * F.cross_entropy(logits, labels, reduction="none", ignore_index=255).mean())
        optimizer.zero_grad(set_to_none=False)
        sum(losses).backward()  # type: ignore[union-attr]
        optimizer.step()
    return {"peak": torch.cuda.max_memory_allocated()}
