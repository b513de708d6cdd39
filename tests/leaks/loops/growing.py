"""Graphs of earlier steps are kept, more of them from step to step: the classics."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from truth import leaks

from .library import AverageMeter, ProgressLog
from .models import FLOAT_BYTES, loader, mlp

SCALAR = FLOAT_BYTES


@leaks("growing", holder="total_loss", bytes_each=0, nodes=True)
def running_total(device: str) -> float:
    """The most asked question of the forum: the sum of the losses is a graph of all steps."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    total_loss = 0
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total_loss += loss  # <- leak; fix: total_loss += loss.item()
    return float(total_loss)


@leaks("growing", holder="losses", bytes_each=SCALAR, nodes=True)
def list_of_losses(device: str) -> list[Any]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x, y in loader(device):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss)  # <- leak; fix: losses.append(loss.item())
    return losses


@leaks("growing", holder="history", bytes_each=SCALAR, nodes=True)
def defaultdict_of_lists(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    history = collections.defaultdict(list)
    for _ in range(3):
        for x, y in loader(device, steps=8):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            history["train/loss"].append(loss)  # <- leak; fix: history["train/loss"].append(loss.item())
    return history


@leaks("growing", holder="history['penalty']", bytes_each=SCALAR, nodes=True)
def log_of_two_keys(device: str) -> Any:
    """Two lists in a dict are filled side by side, one with numbers: the line is the one that names the other's key."""
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    history: dict[str, list[Any]] = {"loss": [], "penalty": []}
    for x, y in loader(device):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        penalty = next(model.parameters()).square().mean()
        (loss + 0.1 * penalty).backward()
        optimizer.step()
        history["loss"].append(loss.item())
        history["penalty"].append(penalty)  # <- leak; fix: history["penalty"].append(penalty.item())
    return history


@dataclasses.dataclass
class Epoch:
    number: int
    losses: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: {"train": [], "val": []})


@dataclasses.dataclass
class History:
    epochs: list[Epoch] = dataclasses.field(default_factory=list)


@leaks("growing", holder="log.epochs", bytes_each=SCALAR, nodes=True)
def losses_by_epoch(device: str) -> Any:
    """In the first epoch one list takes them all; then there is a list of such."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    log = History()
    for number in range(3):
        log.epochs.append(Epoch(number))
        for x, y in loader(device, steps=20):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = loss  # fix here: value = loss.item()
            log.epochs[-1].losses["train"].append(value)  # <- leak
    return log


@leaks("growing", holder="by_step", bytes_each=SCALAR, nodes=True)
def dict_by_step(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    by_step = {}
    for step in range(24):
        x, y = torch.randn(32, 128, device=device), torch.randint(0, 10, (32,), device=device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        by_step[step] = loss  # <- leak; fix: by_step[step] = loss.item()
    return by_step


@leaks("growing", holder="history", bytes_each=SCALAR, nodes=True)
def nested_containers(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: dict[str, Any] = {"train": [], "valid": []}
    for _ in range(4):
        history["train"].append({"loss": [], "rate": 0.01})
        for x, y in loader(device, steps=6):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            history["train"][-1]["loss"].append(loss)  # <- leak; fix: history["train"][-1]["loss"].append(loss.item())
    return history


class Fit:
    """A trainer of the user's own."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.model = mlp(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.running_loss: Any = 0.0

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.running_loss += loss  # <- leak of attribute_of_a_trainer; fix: self.running_loss += loss.item()


@leaks("growing", holder="running_loss", bytes_each=0, nodes=True)
def attribute_of_a_trainer(device: str) -> None:
    fit = Fit(device)
    for x, y in loader(device):
        fit.step(x, y)


HISTORY: list[Any] = []


@leaks("growing", holder="HISTORY", bytes_each=SCALAR, nodes=True)
def global_list(device: str) -> None:
    HISTORY.clear()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        HISTORY.append(loss)  # <- leak; fix: HISTORY.append(loss.item())


class Stats:
    losses: list[Any] = []  # noqa: RUF012  (shared by all: that is the loop's fault)


@leaks("growing", holder="Stats.losses", bytes_each=SCALAR, nodes=True)
def class_attribute(device: str) -> None:
    Stats.losses.clear()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        Stats.losses.append(loss)  # <- leak; fix: Stats.losses.append(loss.item())


@leaks("growing", holder="seen", bytes_each=SCALAR, nodes=True)
def closure(device: str) -> int:
    """The list is a variable of the outer function, and only the inner one uses it."""

    def recorder() -> Any:
        seen = []

        def record(loss: torch.Tensor) -> int:
            seen.append(loss)  # <- leak; fix: seen.append(loss.item())
            return len(seen)

        return record

    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    record = recorder()
    count = 0
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        count = record(loss)
    return count


@dataclasses.dataclass
class Progress:
    steps: int = 0
    loss_sum: Any = 0.0


@leaks("growing", holder="loss_sum", bytes_each=0, nodes=True)
def dataclass_field(device: str) -> Progress:
    progress = Progress()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.steps += 1
        # fix here: loss = loss.item()
        progress.loss_sum = progress.loss_sum + loss  # <- leak
    return progress


class Record(NamedTuple):
    step: int
    loss: Any


@leaks("growing", holder="records", bytes_each=SCALAR, nodes=True)
def list_of_namedtuples(device: str) -> list[Record]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    records = []
    for step, (x, y) in enumerate(loader(device)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        records.append(Record(step, loss))  # <- leak; fix: records.append(Record(step, loss.item()))
    return records


@leaks("growing", holder="recent", bytes_each=SCALAR, nodes=True)
def deque_without_a_bound(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recent = collections.deque()
    for _ in range(24):
        x, y = torch.randn(32, 128, device=device), torch.randint(0, 10, (32,), device=device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss)  # <- leak; fix: recent.append(loss.item())
    return recent


@leaks("growing", holder="recent", bytes_each=SCALAR, nodes=True)
def deque_with_a_bound_that_no_training_reaches(device: str) -> Any:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recent = collections.deque(maxlen=100_000)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        recent.append(loss)  # <- leak; fix: recent.append(loss.item())
    return recent


@dataclasses.dataclass
class Step:
    number: int
    logits: torch.Tensor


@leaks("growing", holder="steps", bytes_each=64 * 1000 * FLOAT_BYTES, nodes=True)
def newest_in_a_variable_too(device: str) -> list[Step]:
    """The variable has what the list got last: no leak of its own."""
    model = mlp(device, outputs=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps: list[Step] = []

    def train(number: int, x: torch.Tensor, y: torch.Tensor) -> Step:
        logits = model(x)
        optimizer.zero_grad()
        F.cross_entropy(logits, y).backward()
        optimizer.step()
        return Step(number, logits)

    for number, (x, y) in enumerate(loader(device, rows=64)):
        step = train(number, x, y)
        steps.append(step)  # <- leak; fix: steps[:] = [Step(number, step.logits.detach().argmax(1))]
        # fix here: del step
    return steps


class Run:
    """As a logger of metrics has it: all rows, and the newest of each name."""

    def __init__(self) -> None:
        self.rows: list[dict[str, torch.Tensor]] = []
        self.summary: dict[str, torch.Tensor] = {}

    def log(self, row: dict[str, torch.Tensor]) -> None:
        self.summary.update(row)
        self.rows.append(row)  # <- leak of newest_in_a_summary_too


@leaks("growing", holder="run.rows", bytes_each=2 * 64 * 400 * FLOAT_BYTES)
def newest_in_a_summary_too(device: str) -> None:
    model = mlp(device, inputs=400, outputs=400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = Run()
    for x, _ in loader(device, rows=64, inputs=400):
        errors = (model(x) - x).abs()
        optimizer.zero_grad()
        errors.mean().backward()
        optimizer.step()
        run.log({"worst": errors.sqrt().max(), "errors": errors})  # fix here: run.log({"worst": errors.max().item()})
        # fix here: del errors


@leaks("growing", holder="ema_loss", bytes_each=0, nodes=True)
def smoothed_loss(device: str) -> Any:
    """An exponential average is a graph of all that it averages."""
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ema_loss = 0.0
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema_loss = 0.9 * ema_loss + 0.1 * loss  # <- leak; fix: ema_loss = 0.9 * ema_loss + 0.1 * loss.item()
    return ema_loss


class Meter:
    """The average meter that is copied from repository to repository."""

    def __init__(self) -> None:
        self.sum: Any = 0.0
        self.count = 0

    def update(self, value: Any, n: int = 1) -> None:
        self.sum += value * n  # <- leak of own_average_meter; fix: self.sum += float(value) * n
        self.count += n


@leaks("growing", holder="sum", bytes_each=0, nodes=True)
def own_average_meter(device: str) -> float:
    meter = Meter()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss, x.shape[0])
    return float(meter.sum / meter.count)


@leaks("growing", holder="total", bytes_each=0, nodes=True)
def meter_of_a_library(device: str) -> float:
    """The fault is in another file; the training itself looks well."""
    meter = AverageMeter("loss")
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.update(loss, x.shape[0])
    return meter.average()


@leaks("growing", holder="pending", bytes_each=SCALAR, nodes=True)
def log_that_flushes_late(device: str) -> None:
    """A logger that writes once in a thousand values, and until then keeps them as they came: said when an epoch has passed."""
    log = ProgressLog(flush_every=1000)
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(itertools.chain(loader(device), loader(device))):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.add_scalar("loss", loss, step)


@leaks("growing", holder="curve", bytes_each=0, nodes=True)
def concatenated_curve(device: str) -> torch.Tensor:
    """One tensor, created again each time, whose graph goes back to the first step."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    curve = torch.zeros(0, device=device)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve = torch.cat([curve, loss.view(1)])  # <- leak; fix: curve = torch.cat([curve, loss.detach().view(1)])
    return curve


@leaks("growing", holder="rows", bytes_each=(128 * 1000 * FLOAT_BYTES, 128 * 8), nodes=True)
def newest_in_a_record_too(device: str) -> int:
    """The newest logits have a variable, and the list has them in a tuple: to delete the variable alone frees nothing."""
    model = mlp(device, outputs=1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    rows: list[Any] = []
    for x, y in loader(device, rows=128):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rows.append((logits, y))  # <- leak; fix: rows.append(logits.argmax(1).sum().item())
        # fix here: del logits
    return len(rows)
