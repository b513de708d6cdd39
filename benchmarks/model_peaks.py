"""Peaks of common models on this card, each in a process of its own. On the emulated GPU the same program gives its error.

    python benchmarks/model_peaks.py [--out FILE] [NAME ...]
    python benchmarks/model_peaks.py --table     compares the stored results and writes the table into docs/accuracy.md

For each model: allocated and reserved peak of three training steps, and what the process used beside PyTorch's reserved
memory. For each of some convolutions and matrix products: the bytes of the library's workspace, which is the peak less the
tensors that a person can count. Models from torchvision, timm and transformers are left out where the package is missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- benchmarks/model_peaks.py --table -->", "<!-- end -->"
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


def measure(name: str) -> dict[str, Any]:
    """Three steps of one model: the peaks of each, and what the process used beside them."""
    import torch

    free, total = torch.cuda.mem_get_info()
    torch.manual_seed(0)
    step = TRAININGS[name]()
    held = torch.cuda.memory_allocated()
    allocated, reserved = [], []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        allocated.append(torch.cuda.max_memory_allocated())
        reserved.append(torch.cuda.max_memory_reserved())
    left, _ = torch.cuda.mem_get_info()
    return {
        "weights_bytes": held,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "beside_reserved_bytes": free - left - torch.cuda.memory_reserved(),
        "total_bytes": total,
    }


def convolutions() -> list[dict[str, Any]]:
    """Workspace of convolutions, forward and backward: the peak less the tensors that are alive then."""
    import torch

    shapes = [
        *(
            (n, c, s, k)
            for n, (c, s), k in itertools.product((1, 8, 32), ((3, 224), (64, 56), (256, 28), (512, 14)), (1, 3, 7))
        ),
    ]
    kinds = itertools.product((torch.float32, torch.bfloat16), (False, True), (False, True))
    rows = []
    for dtype, channels_last, benchmark in kinds:
        torch.backends.cudnn.benchmark = benchmark
        for n, c, s, k in shapes:
            if benchmark and n != 8:
                continue
            layout = torch.channels_last if channels_last else torch.contiguous_format
            layer = torch.nn.Conv2d(c, max(c, 64), k, padding=k // 2, bias=False).to("cuda", dtype)
            layer = layer.to(memory_format=layout)
            x = torch.randn(n, c, s, s, device="cuda", dtype=dtype).to(memory_format=layout).requires_grad_()
            row = {"dtype": str(dtype)[6:], "channels_last": channels_last, "benchmark": benchmark}
            row |= {"batch": n, "channels": c, "outputs": max(c, 64), "size": s, "kernel": k}
            for call in ("first", "second"):
                torch.cuda.empty_cache()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                y = layer(x)
                row[f"{call}_forward"] = torch.cuda.max_memory_allocated() - before - y.nbytes
                gradient = torch.ones_like(y)
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                y.backward(gradient)
                row[f"{call}_backward"] = torch.cuda.max_memory_allocated() - before - x.nbytes - layer.weight.nbytes
                x.grad = layer.weight.grad = None
                del y, gradient
            rows.append(row)
    return rows


def products() -> list[dict[str, Any]]:
    """What stays allocated after the first matrix products, and the peak beside the result; last, the CUDA context."""
    import torch

    rows: list[dict[str, Any]] = []
    free, _ = torch.cuda.mem_get_info()

    def measured(call: str, dtype: Any, act: Callable[[Any, Any], Any]) -> None:
        a = torch.randn(512, 512, device="cuda", dtype=dtype)
        bias = torch.randn(512, device="cuda", dtype=dtype)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        out = act(a, bias)
        peak = torch.cuda.max_memory_allocated() - before - out.nbytes
        stays = torch.cuda.memory_allocated() - before - out.nbytes
        rows.append({"call": call, "dtype": str(dtype)[6:], "peak_bytes": peak, "stays_bytes": stays})

    linear = torch.nn.functional.linear
    for dtype in (torch.float32, torch.bfloat16):
        measured("matmul", dtype, lambda a, bias: a @ a)
        measured("addmm", dtype, lambda a, bias: torch.addmm(bias, a, a))
        measured("linear", dtype, lambda a, bias: linear(a, a, bias))
        measured("bmm", dtype, lambda a, bias: torch.bmm(a[None], a[None]))
        measured("linear of a batch", dtype, lambda a, bias: linear(a.view(8, 64, 512), a, bias))
    with torch.cuda.stream(torch.cuda.Stream()):
        measured("matmul on a second stream", torch.bfloat16, lambda a, bias: a @ a)
    left, _ = torch.cuda.mem_get_info()
    rows.append({"call": "beside reserved", "bytes": free - left - torch.cuda.memory_reserved()})
    return rows


def table() -> str:
    """Third step of each model: peaks on the real card, and the emulated GPU's difference."""
    results = Path(__file__).parent / "results"
    real, emulated = (
        json.loads((results / f"model_peaks_{name}_2026-11-27.json").read_text())["models"]
        for name in ("h100", "emulated")
    )
    lines = ["| model | allocated, GiB | emulated | reserved, GiB | emulated |", "|---|---|---|---|---|"]
    for name, row in real.items():
        cells = [name]
        for counter in ("peak_allocated_bytes", "peak_reserved_bytes"):
            there, here = row[counter][-1], emulated.get(name, {}).get(counter)
            cells += [f"{there / 2**30:.2f}", "no result" if here is None else f"{100 * (here[-1] / there - 1):+.2f} %"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table() -> None:
    docs = Path(__file__).parent.parent / "docs" / "accuracy.md"
    before, _, rest = docs.read_text().partition(BEGIN)
    docs.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*")
    options.add_argument("--out", type=Path)
    options.add_argument(
        "--workers", type=int, default=1, help="processes beside each other; beside_reserved_bytes needs one"
    )
    options.add_argument("--one", action="store_true", help="in this process, as one line of JSON")
    options.add_argument("--table", action="store_true")
    chosen = options.parse_args()
    if chosen.table:
        write_table()
        return
    parts: dict[str, Callable[[], Any]] = {"convolutions": convolutions, "products": products}
    names = chosen.names or [*TRAININGS, *parts]
    if chosen.one:
        print("RESULT " + json.dumps(parts[names[0]]() if names[0] in parts else measure(names[0])))
        return
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(chosen.workers) as workers:
        for name, result in zip(names, workers.map(alone, names), strict=True):
            found[name] = result
            print(f"{name}: {result if isinstance(result, dict) else f'{len(result)} rows'}", flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1))


def alone(name: str) -> Any:
    """One part in a process of its own."""
    words = [sys.executable, __file__, "--one", name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "not ended after 100 s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(lines[-1][7:]) if lines else {"error": done.stderr.strip().splitlines()[-1:]}


if __name__ == "__main__":
    main()
