"""Trainings whose allocations the what-if tests replay: run one with ``python trainings.py NAME``, settings in the environment.

    python trainings.py gpt --steps 4 --snapshot gpt.pickle.gz     # with history from the first allocation on
    python trainings.py gpt --steps 4 --from-step 2 --snapshot ..  # from the end of the second step on

Prints one JSON object: what the allocator itself counted. On the emulated GPU nothing is computed, so models of real
sizes run in seconds; what is asked of the allocator is what they would ask on a card.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A transformer block as GPT-2 has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)).softmax(-1)  # written out: its activations are what makes attention large
        x = x + self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Logits of the next token, [batch, length, words]."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(words, width), nn.Embedding(2048, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


class Residual(nn.Module):
    """Two convolutions around a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(y + self.shortcut(x))


def cnn() -> nn.Module:
    """A ResNet of 18 layers or so."""
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.MaxPool2d(3, 2, 1),
        *(Residual(*shape) for shape in widths),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


def on_gpu(make: Callable[[], nn.Module]) -> nn.Module:
    """Made there at once: weights drawn on the host would take longer than the training."""
    with torch.device("cuda"):
        return make()


def _loss(model: nn.Module, batch: int, length: int) -> Tensor:
    tokens = torch.zeros(batch, length, dtype=torch.long, device="cuda")
    logits = model(tokens)
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def train_gpt(steps: int) -> Iterator[None]:
    """GPT-2 small, all steps alike."""
    model = on_gpu(Gpt)
    optimizer = torch.optim.AdamW(model.parameters())
    yield
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model, 4, 512).backward()
        optimizer.step()
        yield


def train_cnn(steps: int) -> Iterator[None]:
    """A CNN; the last batch of an epoch of four is smaller."""
    model = on_gpu(cnn)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    yield
    for step in range(steps):
        images = torch.zeros(37 if step % 4 == 3 else 96, 3, 224, 224, device="cuda")
        optimizer.zero_grad()
        functional.cross_entropy(model(images), torch.zeros(len(images), dtype=torch.long, device="cuda")).backward()
        optimizer.step()
        yield


def train_lengths(steps: int) -> Iterator[None]:
    """Sequences of a length that varies from step to step: what fragments most."""
    draw = random.Random(7)
    model = on_gpu(lambda: Gpt(layers=6))
    optimizer = torch.optim.AdamW(model.parameters())
    yield
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(model, 4, draw.randrange(64, 1024)).backward()
        optimizer.step()
        yield


def train_evaluation(steps: int) -> Iterator[None]:
    """An evaluation with larger batches after every third step, and the cache emptied after each."""
    model = on_gpu(lambda: Gpt(layers=6))
    optimizer = torch.optim.AdamW(model.parameters())
    yield
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, 6, 512).backward()
        optimizer.step()
        if step % 3 == 2:
            with torch.no_grad():
                losses = [_loss(model, 16, length) for length in (384, 640, 200)]
                torch.stack(losses).mean()
            torch.cuda.empty_cache()
        yield


def train_accumulation(steps: int) -> Iterator[None]:
    """Four micro-batches a step, of other lengths each."""
    draw = random.Random(11)
    model = on_gpu(lambda: Gpt(layers=6))
    optimizer = torch.optim.AdamW(model.parameters())
    yield
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(4):
            (_loss(model, 3, draw.choice([256, 384, 512, 768])) / 4).backward()
        optimizer.step()
        yield


def train_prefetch(steps: int) -> Iterator[None]:
    """Batches are copied on a stream of their own, and marked by record_stream."""
    side = torch.cuda.Stream()
    draw = random.Random(3)
    model = on_gpu(cnn)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    yield
    for _ in range(steps):
        with torch.cuda.stream(side):
            images = torch.zeros(draw.randrange(16, 128), 3, 224, 224, device="cuda")
        images.record_stream(torch.cuda.current_stream())
        labels = torch.zeros(len(images), dtype=torch.long, device="cuda")
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        yield


def train_generation(steps: int) -> Iterator[None]:
    """The keys of six layers, which grow by a copy for each word; texts of other lengths: small blocks of many sizes."""
    draw = random.Random(6)
    yield
    for _ in range(steps):
        past = [torch.zeros(1, 8, 1, 512, device="cuda") for _ in range(6)]
        for _ in range(draw.randrange(12, 100)):
            past = [torch.cat([one, one[:, :, :1]], 2) for one in past]
        yield


def train_adversaries(steps: int) -> Iterator[None]:
    """Two models with an optimizer each, and a gradient penalty; the pictures become larger every second step."""
    maker = on_gpu(lambda: nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 3 * 96 * 96)))
    critic = on_gpu(cnn)
    optimizers = [torch.optim.Adam(maker.parameters()), torch.optim.RMSprop(critic.parameters(), foreach=False)]
    yield
    for step in range(steps):
        size, rows = (96, 48) if step % 4 < 2 else (160, 24)
        fake = functional.interpolate(maker(torch.zeros(rows, 256, device="cuda")).view(rows, 3, 96, 96), size=size)
        mixed = torch.zeros(rows, 3, size, size, device="cuda", requires_grad=True)
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        (critic(fake.detach()).mean() + slope.square().mean()).backward()
        optimizers[1].step()
        critic.zero_grad()
        critic(fake).mean().backward()
        optimizers[0].step()
        maker.zero_grad()
        critic.zero_grad()
        yield


def train_experts(steps: int) -> Iterator[None]:
    """Rows are routed to experts of two widths in parts of any size; states wait on the host; blocks are checkpointed."""
    draw = random.Random(19)
    experts = on_gpu(
        lambda: nn.ModuleList(
            nn.Sequential(nn.Linear(1024, w), nn.GELU(), nn.Linear(w, 1024)) for w in (2048, 5120) * 3
        )
    )
    optimizer = torch.optim.AdamW(experts.parameters(), fused=True)
    yield
    for _ in range(steps):
        x = torch.zeros(draw.randrange(2000, 9000), 1024, device="cuda", requires_grad=True)
        for _ in range(3):
            cuts = sorted(draw.randrange(1, len(x)) for _ in experts[1:])
            parts = zip(experts, x.tensor_split(cuts), strict=True)
            x = torch.cat([checkpoint(expert, part, use_reentrant=False) for expert, part in parts]) + x
        with torch.autograd.graph.save_on_cpu():
            loss = functional.layer_norm(x, (1024,)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def train_points(steps: int) -> Iterator[None]:
    """LBFGS with a history; second derivatives; the number of points changes in each step."""
    draw = random.Random(23)
    net = on_gpu(lambda: nn.Sequential(nn.Linear(2, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1)))
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2, history_size=3)
    yield
    for _ in range(steps):
        points = torch.zeros(draw.randrange(20_000, 90_000), 2, device="cuda", requires_grad=True)

        def closure() -> Tensor:
            optimizer.zero_grad()
            (slope,) = torch.autograd.grad(net(points).sum(), points, create_graph=True)  # noqa: B023
            loss = slope.square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
        yield


# Each yields when its model is there, and after each step.
TRAININGS: dict[str, Callable[[int], Iterator[None]]] = {
    "gpt": train_gpt,
    "cnn": train_cnn,
    "lengths": train_lengths,
    "evaluation": train_evaluation,
    "accumulation": train_accumulation,
    "prefetch": train_prefetch,
    "generation": train_generation,
    "adversaries": train_adversaries,
    "experts": train_experts,
    "points": train_points,
}


def run(
    name: str, *, steps: int, from_step: int = 0, max_entries: int = 0, fraction: float = 1.0, snapshot: str = "",
    given: Sequence[str] = (), window: str = "",
) -> dict[str, object]:  # fmt: skip
    """Train, with history from the end of step ``from_step`` on if a ``snapshot`` is wanted; peaks are from there on, too.

    given    settings that are given to the running process, one text after the other
    window   where the first one is written that the agent records, which is attached when the model is there
    """
    torch.cuda.init()
    for text in given:
        torch._C._accelerator_setAllocatorSettings(text)
    if fraction < 1:
        torch.cuda.set_per_process_memory_fraction(fraction)
    bounds = {"max_entries": max_entries} if max_entries else {}

    def record() -> None:
        if snapshot:
            torch.cuda.memory._record_memory_history(stacks="python", **bounds)  # type: ignore[arg-type]

    if not from_step:
        record()
    out_of_memory = False
    training = TRAININGS[name](steps)  # held to the end: the history ends with a step, and all that it leaves
    next(training)
    try:
        with recording(window) if window else nullcontext():
            for step, _ in enumerate(training, 1):
                if step == from_step:
                    torch.cuda.reset_peak_memory_stats()
                    record()
                if step == steps:
                    break
    except torch.OutOfMemoryError:
        out_of_memory = True
    counted = torch.cuda.memory_stats()
    free, total = torch.cuda.mem_get_info()
    if snapshot:
        with gzip.open(snapshot, "wb", compresslevel=1) as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
    return {
        "out_of_memory": out_of_memory,
        "peak_reserved_bytes": counted["reserved_bytes.all.peak"],
        "peak_allocated_bytes": counted["allocated_bytes.all.peak"],
        "end_reserved_bytes": counted["reserved_bytes.all.current"],
        "retries": counted["num_alloc_retries"],
        "device_allocs": counted["num_device_alloc"],
        "outside_bytes": total - free - counted["reserved_bytes.all.current"],
    }


@contextmanager
def recording(window: str) -> Iterator[None]:
    """The agent is attached, and writes the windows that it records there: the first one that is packed."""
    os.environ.update(VRAMSCOPE_QUIET="1", VRAMSCOPE_SPOOL_DIR=f"{window}.spool")
    from vramscope import agent
    from vramscope.protocol.window import pack

    packed: list[bytes] = []
    session = agent.attach(None, name="window")
    session._recorder._packing._on_window = lambda one: packed.append(pack(one))  # type: ignore[union-attr]
    yield
    deadline = time.monotonic() + 60
    while not packed and time.monotonic() < deadline:  # on a thread of its own
        time.sleep(0.01)
    session.close()
    Path(window).write_bytes(packed[0])


def main() -> None:
    words = argparse.ArgumentParser()
    words.add_argument("name", choices=TRAININGS)
    words.add_argument("--steps", type=int, default=6)
    words.add_argument("--from-step", type=int, default=0, help="history begins after this number of steps")
    words.add_argument("--max-entries", type=int, default=0, help="of the history; 0: unbounded")
    words.add_argument("--fraction", type=float, default=1.0, help="set_per_process_memory_fraction")
    words.add_argument("--snapshot", default="")
    words.add_argument(
        "--given", action="append", default=[], help="settings that are given at run time; several: several"
    )
    print(json.dumps(run(**vars(words.parse_args()))))


if __name__ == "__main__":
    main()
