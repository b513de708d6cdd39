"""PyTorch's own machinery around a sound loop: recomputation, compilation, mixed precision, replicas, the profiler."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from truth import innocent

from .models import loader, mlp


def deep(device: str) -> nn.Sequential:
    return nn.Sequential(*[nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(4)], nn.Linear(128, 10)).to(
        device
    )


def recomputed(device: str, use_reentrant: bool) -> None:
    model = deep(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        x.requires_grad_()
        hidden = x
        for layer in model[:-1]:
            hidden = checkpoint(layer, hidden, use_reentrant=use_reentrant)
        loss = F.cross_entropy(model[-1](hidden), y)
        del hidden
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("checkpointing calls backward within backward")
def checkpointing_reentrant(device: str) -> None:
    recomputed(device, use_reentrant=True)


@innocent("checkpointing packs its tensors by hooks: reading them would compute them")
def checkpointing(device: str) -> None:
    recomputed(device, use_reentrant=False)


@innocent("a compiled model: its graph is one node of a Function that keeps its tensors itself, its caches hold fakes")
def compiled(device: str) -> None:
    torch.compiler.reset()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    fast = torch.compile(model, backend="aot_eager")
    for x, y in loader(device):
        loss = F.cross_entropy(fast(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@innocent("autocast keeps a cache of weights in half precision within a forward; the scaler scales the loss")
def mixed_precision(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
    for x, y in loader(device):
        with torch.autocast(device, dtype=torch.float16 if device == "cuda" else torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


@innocent("one replica of DDP: it holds the node of every parameter's gradient for ever, and buckets of gradients")
def replicas(device: str) -> None:
    rendezvous = Path(tempfile.mkdtemp(prefix="leaks-ddp-")) / "store"
    backend = "nccl" if device == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=f"file://{rendezvous}", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for number, (x, y) in enumerate(loader(device, steps=48), 1):
            model.require_backward_grad_sync = number % 2 == 0
            loss = F.cross_entropy(model(x), y) / 2
            loss.backward()
            if number % 2 == 0:
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.distributed.destroy_process_group()


@innocent("the profiler records every operation, more from step to step: on the host, and no tensors")
def profiler(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True) as profile:
        for x, y in loader(device):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            profile.step()
    return len(profile.key_averages())


@innocent("the detection of anomalies notes in each node where it was made")
def anomalies(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        for x, y in loader(device, rows=256):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


@innocent("activations saved on the host by hooks on saved tensors")
def saved_on_the_host(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, rows=128):
        with torch.autograd.graph.save_on_cpu():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Scaled(torch.autograd.Function):
    """Keeps numbers as attributes and tensors as it should."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        assert x.shape == gradient.shape
        return gradient * ctx.scale, None


@innocent("a function of the user's own that saves by save_for_backward")
def own_function(device: str) -> None:
    first, last = nn.Linear(128, 512).to(device), nn.Linear(512, 10).to(device)
    optimizer = torch.optim.SGD([*first.parameters(), *last.parameters()], lr=0.01)
    for x, y in loader(device, rows=128):
        loss = F.cross_entropy(last(Scaled.apply(first(x), 0.5)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
