"""Small trainings of common models for model_peaks.py. Each function makes a model and returns one step.

Models of torchvision, timm and transformers need these packages. All weights are random.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

Training = Callable[[], Callable[[], None]]
TRAININGS: dict[str, Training] = {}


def training(make: Training) -> Training:
    TRAININGS[make.__name__] = make
    return make


def classifier(
    model: Any, shape: tuple[int, ...], *, amp: bool = False, classes: int = 1000, sgd: bool = True
) -> Callable[[], None]:
    """Three steps of an image classifier."""
    import torch

    model = model.cuda()
    if sgd:
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        images = torch.randn(*shape, device="cuda")
        labels = torch.randint(0, classes, (shape[0],), device="cuda")
        with torch.autocast("cuda", torch.bfloat16) if amp else nullcontext():
            out = model(images)
            loss = torch.nn.functional.cross_entropy(getattr(out, "logits", out), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def language(model: Any, rows: int, length: int, *, amp: bool = False) -> Callable[[], None]:
    """Three steps of a language model of transformers."""
    import torch

    model = model.cuda().train()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        ids = torch.randint(0, 1000, (rows, length), device="cuda")
        with torch.autocast("cuda", torch.bfloat16) if amp else nullcontext():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@training
def resnet50() -> Callable[[], None]:
    import torchvision

    return classifier(torchvision.models.resnet50(), (32, 3, 224, 224))


@training
def resnet50_bf16_channels_last() -> Callable[[], None]:
    import torch
    import torchvision

    model = torchvision.models.resnet50().to(memory_format=torch.channels_last)
    return classifier(model, (128, 3, 224, 224), amp=True)


@training
def vgg16() -> Callable[[], None]:
    import torchvision

    return classifier(torchvision.models.vgg16(), (16, 3, 224, 224))


@training
def mobilenet_v3() -> Callable[[], None]:
    import torchvision

    return classifier(torchvision.models.mobilenet_v3_large(), (64, 3, 224, 224))


@training
def convnext_tiny_bf16() -> Callable[[], None]:
    import timm

    return classifier(timm.create_model("convnext_tiny"), (32, 3, 224, 224), amp=True, sgd=False)


@training
def vit_base_bf16() -> Callable[[], None]:
    import timm

    return classifier(timm.create_model("vit_base_patch16_224"), (32, 3, 224, 224), amp=True, sgd=False)


@training
def faster_rcnn() -> Callable[[], None]:
    import torch
    import torchvision

    model = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def step() -> None:
        images = [torch.rand(3, 480, 640, device="cuda") for _ in range(4)]
        box = torch.tensor([[50.0, 50.0, 300.0, 300.0], [100.0, 80.0, 400.0, 200.0]], device="cuda")
        targets = [{"boxes": box, "labels": torch.tensor([1, 2], device="cuda")} for _ in images]
        sum(model(images, targets).values()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@training
def unet() -> Callable[[], None]:
    import torch
    from torch import nn

    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = (64, 128, 256, 512)
            self.down = nn.ModuleList(block(a, b) for a, b in zip((3, *widths), widths, strict=False))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(widths))
            self.joined = nn.ModuleList(block(2 * a, a) for a in widths[:-1])
            self.last = nn.Conv2d(64, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = []
            for index, down in enumerate(self.down):
                x = down(x)
                if index < 3:
                    kept.append(x)
                    x = nn.functional.max_pool2d(x, 2)
            for index in (2, 1, 0):
                x = self.joined[index](torch.cat([self.up[index](x), kept[index]], 1))
            return self.last(x).mean((2, 3))

    return classifier(UNet(), (4, 3, 256, 256), classes=2, sgd=False)


@training
def volumes_conv3d() -> Callable[[], None]:
    from torch import nn

    model = nn.Sequential(
        *(nn.Conv3d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv3d(32, 64, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv3d(64, 128, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
        nn.Linear(128, 10),
    )
    return classifier(model, (2, 1, 64, 96, 96), classes=10)


@training
def dcgan() -> Callable[[], None]:
    import torch
    from torch import nn

    def up(a: int, b: int) -> list[nn.Module]:
        return [nn.ConvTranspose2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]

    def down(a: int, b: int) -> list[nn.Module]:
        return [nn.Conv2d(a, b, 4, 2, 1, bias=False), nn.BatchNorm2d(b), nn.LeakyReLU(0.2)]

    maker = nn.Sequential(
        nn.ConvTranspose2d(100, 512, 4),
        nn.ReLU(),
        *up(512, 256),
        *up(256, 128),
        *up(128, 64),
        nn.ConvTranspose2d(64, 3, 4, 2, 1),
        nn.Tanh(),
    ).cuda()
    judge = nn.Sequential(
        *down(3, 64), *down(64, 128), *down(128, 256), *down(256, 512), nn.Conv2d(512, 1, 4), nn.Flatten()
    ).cuda()
    optimizers = [torch.optim.Adam(part.parameters()) for part in (judge, maker)]

    def step() -> None:
        real = torch.randn(128, 3, 64, 64, device="cuda")
        made = maker(torch.randn(128, 100, 1, 1, device="cuda"))
        for optimizer, loss in (
            (optimizers[0], lambda: judge(made.detach()).mean() - judge(real).mean()),
            (optimizers[1], lambda: -judge(made).mean()),
        ):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return step


@training
def lstm() -> Callable[[], None]:
    import torch
    from torch import nn

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(10000, 512)
            self.rnn = nn.LSTM(512, 1024, 2, dropout=0.2)
            self.head = nn.Linear(1024, 10000)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(self.embedding(ids))[0]).flatten(0, 1)

    model = Words().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        ids = torch.randint(0, 10000, (64, 32), device="cuda")
        nn.functional.cross_entropy(model(ids), ids.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()

    return step


@training
def gpt2_fp32() -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return language(GPT2LMHeadModel(GPT2Config()), 4, 512)


@training
def gpt2_bf16() -> Callable[[], None]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return language(GPT2LMHeadModel(GPT2Config()), 8, 1024, amp=True)


@training
def bert_base() -> Callable[[], None]:
    from transformers import BertConfig, BertForMaskedLM

    return language(BertForMaskedLM(BertConfig()), 16, 128)


@training
def llama_checkpointed() -> Callable[[], None]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=12, num_attention_heads=16, vocab_size=32000
    )
    model = LlamaForCausalLM(shape).to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    return language(model, 4, 2048)


@training
def mixtral() -> Callable[[], None]:
    from transformers import MixtralConfig, MixtralForCausalLM

    shape = MixtralConfig(
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_local_experts=8,
        vocab_size=32000,
    )
    return language(MixtralForCausalLM(shape), 8, 512)


@training
def generation() -> Callable[[], None]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda().eval()

    def step() -> None:
        with torch.no_grad():
            ids = torch.randint(0, 1000, (8, 128), device="cuda")
            model.generate(ids, max_new_tokens=128, min_new_tokens=128, pad_token_id=0)

    return step


@training
def attention_fp32() -> Callable[[], None]:
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True, dropout=0.0)

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.head = nn.TransformerEncoder(layer, 4), nn.Linear(512, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(x).mean(1))

    return classifier(Encoder(), (8, 1024, 512), classes=10, sgd=False)
