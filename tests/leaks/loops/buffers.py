"""Buffers that the code bounds by hand, which look like growth until they are full; and some that nothing bounds."""

from __future__ import annotations

import collections
import contextlib
import copy
import heapq
import itertools
import queue
import random
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from truth import innocent, leaks

from .models import FLOAT_BYTES, loader, mlp

BATCH = 32 * 128 * FLOAT_BYTES
WEIGHTS = (128 * 256, 256, 256 * 10, 10)


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def training(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = mlp(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


@innocent("the oldest goes when there are twenty", settles_bytes=21 * BATCH)
def window_cut_by_hand(device: str) -> None:
    model, optimizer = training(device)
    recent: list[torch.Tensor] = []
    for x, y in loader(device, steps=36):
        step_on(model, optimizer, x, y)
        recent.append(x.clone())
        if len(recent) > 20:
            recent.pop(0)


@innocent("only the last eighteen are kept", settles_bytes=19 * BATCH)
def window_that_is_a_slice(device: str) -> None:
    model, optimizer = training(device)
    recent: list[torch.Tensor] = []
    for x, y in loader(device, steps=36):
        step_on(model, optimizer, x, y)
        recent = [*recent, x.clone()][-18:]


@innocent("an epoch of batches, which are given again", settles_bytes=16 * (BATCH + 32 * 8))
def cycle_of_an_epoch(device: str) -> None:
    model, optimizer = training(device)
    batches = itertools.cycle(loader(device, steps=16))
    for _ in range(40):
        x, y = next(batches)
        step_on(model, optimizer, x, y)


@innocent("the oldest are overwritten from the twenty-fourth on", settles_bytes=24 * BATCH)
def ring(device: str) -> None:
    model, optimizer = training(device)
    replay: list[torch.Tensor] = []
    for step, (x, y) in enumerate(loader(device, steps=36)):
        if len(replay) < 24:
            replay.append(x.clone())
        else:
            replay[step % 24] = x.clone()
        step_on(model, optimizer, replay[step // 3 % len(replay)], y)


@innocent("the queue itself takes no more than thirty", settles_bytes=31 * BATCH)
def queue_with_a_bound(device: str) -> None:
    model, optimizer = training(device)
    waiting: queue.Queue[torch.Tensor] = queue.Queue(maxsize=30)
    for x, y in loader(device, steps=36):
        step_on(model, optimizer, x, y)
        with contextlib.suppress(queue.Full):
            waiting.put_nowait(x.clone())


class Cache:
    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.entries: collections.OrderedDict[int, torch.Tensor] = collections.OrderedDict()

    def get(self, key: int, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key not in self.entries:
            self.entries[key] = make()  # <- leak of cache_that_never_evicts
            # fix here: self.capacity = 4
            if len(self.entries) > self.capacity:
                self.entries.popitem(last=False)
        return self.entries[key]


class Features(collections.OrderedDict[int, torch.Tensor]):
    """A dict by itself, which its methods know as ``self``."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity

    def fetch(self, key: int, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        if key in self:
            self.move_to_end(key)
            return self[key]
        self[key] = value = make()  # <- leak of features_of_every_batch
        # fix here: self.capacity = 4
        if len(self) > self.capacity:
            self.popitem(last=False)
        return value


@leaks("tensor-growth", holder="features", bytes_each=BATCH)
def features_of_every_batch(device: str) -> None:
    """The encoder is called within a method of the dict's own."""
    encoder, features = nn.Linear(128, 128).to(device).requires_grad_(False), Features(10**9)
    model, optimizer = training(device)
    y = torch.zeros(32, dtype=torch.long, device=device)
    for step in range(56):
        x = torch.randn(32, 128, device=device)
        step_on(model, optimizer, features.fetch(step, lambda x=x: encoder(x)), y)


def train_with(cache: Cache, device: str, steps: int) -> None:
    model, optimizer = training(device)
    for step, (x, y) in enumerate(loader(device, steps=steps)):
        step_on(model, optimizer, x + cache.get(step, lambda: torch.randn(32, 128, device=device)), y)


@innocent("a cache that evicts from the sixteenth entry on", settles_bytes=17 * BATCH)
def cache_that_evicts(device: str) -> None:
    train_with(Cache(16), device, 36)


@leaks("tensor-growth", holder="cache.entries", bytes_each=BATCH)
def cache_that_never_evicts(device: str) -> None:
    """It has the code for it, but its capacity is never reached: said later, for it might be full soon."""
    cache = Cache(10**9)
    train_with(cache, device, 48)


@innocent(
    "slots that are filled one after the other and then overwritten: the growth ends, and the finding is withdrawn",
    settles_bytes=18 * BATCH,
)
def slots_of_a_table(device: str) -> None:
    model, optimizer = training(device)
    slots: dict[int, torch.Tensor] = {}
    for step, (x, y) in enumerate(loader(device, steps=64)):
        slots[step % 18] = x.clone()
        step_on(model, optimizer, x, y)


@innocent("a heap of the thirty hardest examples: full, it takes one for each that it gives", settles_bytes=31 * BATCH)
def hardest_examples(device: str) -> None:
    model, optimizer = training(device)
    hard: list[tuple[int, int, torch.Tensor]] = []
    for step, (x, y) in enumerate(loader(device, steps=80)):
        step_on(model, optimizer, x, y)
        entry = (step * 7919 % 1000, step, x.clone())
        if len(hard) < 30:
            heapq.heappush(hard, entry)
        else:
            heapq.heappushpop(hard, entry)


@innocent(
    "a table of what comes ever more seldom: it slows down, and what was said is withdrawn", settles_bytes=33 * BATCH
)
def table_that_fills_ever_more_slowly(device: str) -> None:
    model, optimizer = training(device)
    tables: dict[int, torch.Tensor] = {}
    lengths = random.Random(0)
    for x, y in loader(device, steps=110):
        length = lengths.randrange(32)
        if length not in tables:
            tables[length] = torch.ones_like(x)
        step_on(model, optimizer, x * tables[length], y)


@innocent(
    "statistics of the first steps, gathered for a scale and let go: what was said is withdrawn",
    settles_bytes=2 * BATCH,
)
def gathered_and_let_go(device: str) -> None:
    model, optimizer = training(device)
    gathered: list[torch.Tensor] = []
    for step, (x, y) in enumerate(loader(device, steps=72)):
        step_on(model, optimizer, x, y)
        if step < 40:
            gathered.append(x.abs())
        elif gathered:
            scale = torch.stack(gathered).amax()
            gathered.clear()
    del scale


@leaks("tensor-growth", holder="ensemble", bytes_each=tuple(FLOAT_BYTES * size for size in WEIGHTS))
def ensemble(device: str) -> list[Any]:
    """A copy of the whole model after each step."""
    model, optimizer = training(device)
    ensemble = []
    for x, y in loader(device):
        step_on(model, optimizer, x, y)
        ensemble.append(copy.deepcopy(model))  # <- leak; fix: ensemble = [copy.deepcopy(model)]
    return ensemble


class Rounded(torch.autograd.Function):
    """Straight-through rounding, which remembers where it let gradients pass, for a statistic."""

    passes: ClassVar[dict[int, torch.Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        inside = x.abs() < 1
        ctx.save_for_backward(inside)
        Rounded.passes[len(Rounded.passes)] = inside  # <- leak of masks_of_a_function; fix: Rounded.passes[0] = inside
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0]


class Seen:
    """Whatever is to be found again by a number. Another class has a line that reads ``.items``, of a dict, and adds."""

    items: ClassVar[dict[int, torch.Tensor]] = {}

    @classmethod
    def add(cls, one: torch.Tensor) -> None:
        cls.items[id(one)] = one  # <- leak of kept_by_a_class; fix: cls.items[0] = one


class Tally:
    """Sums by name; its line reads an attribute ``items``, too, and adds."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}

    def update(self, **sums: float) -> None:
        self.sums.update((name, one) for name, one in sums.items())


@leaks("tensor-growth", holder="Seen.items", bytes_each=BATCH)
def kept_by_a_class(device: str) -> None:
    """A class of the user's own has the dict, and a method that fills it."""
    Seen.items.clear()
    (model, optimizer), tally = training(device), Tally()
    for x, y in loader(device):
        step_on(model, optimizer, x, y)
        Seen.add(x.clone())
        tally.update(steps=1.0)


@leaks("tensor-growth", holder="Rounded.passes", bytes_each=64 * 512)
def masks_of_a_function(device: str) -> None:
    """In an attribute of the class, which the loop has by a method of it alone."""
    first, second, rounded = nn.Linear(128, 512).to(device), nn.Linear(512, 10).to(device), Rounded.apply
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    for x, y in loader(device, rows=64):
        loss = F.cross_entropy(second(rounded(first(x))), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class Recent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)])
        self.replay2: collections.deque[torch.Tensor] = collections.deque(maxlen=24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            setattr(self, f"seen_{number}", x.detach())
            x = layer(x).relu()
        self.replay2.append(x.detach().clone())
        return x


@innocent("a deque with a bound, beside attributes with numbers in their names", settles_bytes=32 * BATCH)
def deque_beside_numbers(device: str) -> None:
    model = Recent().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        step_on(model, optimizer, x, y)


@innocent(
    "a window that is not full when the run ends: the code says how many it has at most", settles_bytes=48 * BATCH
)
def window_that_is_not_full_yet(device: str) -> None:
    model, optimizer = training(device)
    recent: list[torch.Tensor] = []
    for x, y in loader(device, steps=48):
        recent.append(x.clone())
        if len(recent) > 200:
            recent.pop(0)
        step_on(model, optimizer, x, y)


class Pool:
    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor) -> None:
        self.rows.append(rows)
        while len(self.rows) > self.most:
            self.rows.pop(0)


@innocent("the same, where an attribute has the number", settles_bytes=48 * BATCH)
def pool_that_is_not_full_yet(device: str) -> None:
    model, optimizer = training(device)
    pool = Pool(150)
    for x, y in loader(device, steps=48):
        pool.add(x.clone())
        step_on(model, optimizer, x, y)


@innocent(
    "what compression leaves out of gradients: replaced at each step, and more as layers are unfrozen",
    settles_bytes=4 << 20,
)
def residues_of_unfrozen_layers(device: str) -> None:
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(7)), nn.Linear(128, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model[:-1].requires_grad_(False)
    residues: dict[str, torch.Tensor] = {}
    for step, (x, y) in enumerate(loader(device, steps=80)):
        if step % 12 == 11:
            model[6 - step // 12].requires_grad_(True)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                whole = parameter.grad + residues.get(name, 0)
                parameter.grad = whole.round(decimals=2)
                residues[name] = whole - parameter.grad
        optimizer.step()
