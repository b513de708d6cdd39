"""Graphs of earlier steps kept by holders that a search easily overlooks: code that waits, threads, hooks, tensors."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Generator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from truth import leaks

from .models import FLOAT_BYTES, cross_entropy_bytes, loader, mlp, mlp_graph_bytes

SCALAR = FLOAT_BYTES


@leaks("growing", holder="reports", bytes_each=SCALAR, nodes=True)
def lambdas(device: str) -> list[str]:
    """Reports that are only made at the end; each holds its loss in a default argument."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reports = []
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        value = loss  # fix here: value = loss.item()
        reports.append(lambda value=value: f"{float(value):.3f}")  # <- leak
    return [report() for report in reports]


def prefetched(batches: Any) -> Generator[Any, None, None]:
    """From a loader that a thread goes through, two batches ahead."""
    ahead: queue.Queue[Any] = queue.Queue(maxsize=2)

    def run() -> None:
        for batch in batches:
            ahead.put(batch)
        ahead.put(None)

    threading.Thread(target=run, daemon=True).start()
    while (batch := ahead.get()) is not None:
        yield batch


@leaks("growing", holder="losses", bytes_each=SCALAR, nodes=True)
def beside_a_prefetcher(device: str) -> None:
    """Another thread reads the loader before the training thread has called anything."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for x, y in prefetched(loader("cpu")):
        loss = F.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)  # <- leak; fix: losses.append(loss.item())


@leaks("growing", holder="reports", bytes_each=SCALAR, nodes=True)
def partials(device: str) -> list[str]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    reports = []
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        reports.append(functools.partial("{:.3f}".format, loss))  # <- leak; fix: reports.append("{:.3f}".format(loss))
    return reports


@leaks("growing", holder=("log_queue", "queue"), bytes_each=SCALAR, nodes=True)
def queue_of_a_slow_thread(device: str) -> None:
    """The thread that writes the log does not keep up."""
    log_queue: queue.Queue[Any] = queue.Queue()
    may_write = threading.Event()

    def write() -> None:
        may_write.wait()
        while log_queue.get() is not None:
            pass

    writer = threading.Thread(target=write)
    writer.start()
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        for x, y in loader(device):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            log_queue.put(loss)  # <- leak; fix: log_queue.put(loss.item())
    finally:
        log_queue.put(None)
        may_write.set()
        writer.join()


def rate(epoch: int, losses: list[Any] = []) -> float:  # noqa: B006
    """A schedule with a memory of its own, as people write it by mistake."""
    losses.extend(newest)  # <- leak of schedule_with_a_memory; fix: (nothing)
    return float(0.99 ** len(losses))


newest: list[Any] = []


@leaks("growing", holder="losses", bytes_each=4, nodes=True)
def schedule_with_a_memory(device: str) -> None:
    rate.__defaults__[0].clear()  # type: ignore[index]
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        newest[:] = [loss]
        schedule.step()
    newest.clear()


def gather(found: list[Any], loss: torch.Tensor) -> None:
    found.append(loss)  # <- leak of handed_to_a_function; fix: found.append(loss.item())


@leaks("growing", holder="history", bytes_each=4, nodes=True)
def handed_to_a_function(device: str) -> list[Any]:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    history: list[Any] = []
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gather(history, loss)
    return history


def smoothing() -> Generator[Any, Any, None]:
    """Gives the mean of all that was sent to it."""
    total, count = 0.0, 0
    while True:
        value = yield total / max(1, count)
        total = total + value  # <- leak of generator; fix: total = total + float(value)
        count += 1


@leaks("growing", holder="total", bytes_each=0, nodes=True)
def generator(device: str) -> float:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mean = smoothing()
    next(mean)
    smooth = 0.0
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        smooth = mean.send(loss)
    return float(smooth)


@leaks("growing", holder="errors", bytes_each=(32 * 10 * FLOAT_BYTES, SCALAR), nodes=True)
def kept_exceptions(device: str) -> list[Exception]:
    """An exception holds its traceback, the traceback its frames, and these their variables."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    errors: list[Exception] = []

    def train_on(x: torch.Tensor, y: torch.Tensor) -> None:
        out = model(x)
        loss = F.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        raise ValueError("the label file has a hole")

    x, y = torch.randn(32, 128, device=device), torch.randint(0, 10, (32,), device=device)
    for _ in range(24):
        try:
            train_on(x, y)
        except ValueError as error:
            errors.append(error)  # <- leak; fix: errors.append(error.with_traceback(None))
    return errors


@leaks("growing", holder=("activations", "outputs"), bytes_each=32 * 256 * FLOAT_BYTES)
def forward_hook(device: str) -> int:
    """The hook was for a check of the first batch, and was never removed."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    activations = []

    def keep(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        activations.append(output)  # <- leak; fix: activations[:] = [output.detach()]

    model[0].register_forward_hook(keep)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return len(activations)


@leaks("growing", holder="_forward_hooks", bytes_each=SCALAR, nodes=True, advice=".remove() it")
def a_hook_more_each_step(device: str) -> None:
    """Each hook holds the loss of the step that registered it."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros((), device=device)
    for x, y in loader(device):
        hook = functools.partial(watch_loss, loss)
        handle = model[2].register_forward_hook(hook)  # <- leak
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # fix here: handle.remove()
    assert handle is not None


def watch_loss(previous: torch.Tensor, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
    assert previous.ndim == 0


@leaks("growing", holder="hidden", bytes_each=16 * (64 + 64) * FLOAT_BYTES)
def carried_hidden_state(device: str) -> None:
    """Backward goes through all steps so far; retain_graph makes the error about that go away. Updates by hand."""
    cell = nn.RNNCell(64, 64).to(device)
    hidden = torch.zeros(16, 64, device=device)
    for _ in range(24):
        x = torch.randn(16, 64, device=device)
        hidden = cell(x, hidden)  # <- leak; fix: hidden = cell(x, hidden.detach())
        loss = hidden.square().mean()
        cell.zero_grad()
        loss.backward(retain_graph=True)  # fix here: loss.backward()
        for parameter in cell.parameters():
            parameter.data -= 0.01 * parameter.grad


@leaks("growing", holder="hidden", bytes_each=2 * 16 * 8 * 64 * FLOAT_BYTES, advice="hidden.detach()")
def carried_state_and_what_is_made_of_it(device: str) -> None:
    """With retain_graph a backward visits all steps so far. The logits and the loss lead there too, and are new each time."""
    cell, head = nn.RNNCell(64, 64).to(device), nn.Linear(64, 10).to(device)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
    hidden = torch.zeros(16, 64, device=device)
    for _ in range(48):
        x, y = torch.randn(16, 8, 64, device=device), torch.randint(0, 10, (16,), device=device)
        for at in range(8):
            hidden = cell(x[:, at], hidden)  # <- leak
        logits = head(hidden)
        loss = F.cross_entropy(logits, y)
        loss.backward(retain_graph=True)  # fix here: loss.backward()
        with torch.no_grad():
            for one in (*cell.parameters(), *head.parameters()):
                one.data.add_(one.grad, alpha=-0.001)  # (past the check that would refuse the next backward)
        optimizer.zero_grad()
        optimizer.step()
        # fix here: hidden = hidden.detach()


@leaks("growing", holder="outputs", bytes_each=48 * 256 * FLOAT_BYTES)
def kept_outputs(device: str) -> list[torch.Tensor]:
    """The tensors themselves are the most of it: detach() alone would keep them on the device."""
    model = mlp(device, outputs=256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    outputs = []
    for x, _ in loader(device, rows=48):
        out = model(x)
        loss = out.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outputs.append(out)  # <- leak; fix: outputs.append(out.detach().mean(0))
    return outputs


@leaks("growing", holder="history", bytes_each=32 * 10 * FLOAT_BYTES)
def kept_by_the_model(device: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = mlp(device)
            self.history: list[torch.Tensor] = []

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = self.layers(x)
            self.history.append(out)  # <- leak; fix: self.history = [out.detach()]
            return out

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks("growing", holder="shadow", held_bytes=(128 * 256 + 256 + 256 * 10 + 10) * FLOAT_BYTES, nodes=True)
def averaged_weights_with_graph(device: str) -> Any:
    """The average of the weights is computed with gradients on: a graph over all steps, never walked."""
    model = mlp(device)
    optimizer = torch.optim.AdamW(model.parameters())
    shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for name, parameter in model.named_parameters():
            weight = parameter  # fix here: weight = parameter.detach()
            shadow[name] = 0.99 * shadow[name] + 0.01 * weight  # <- leak
    return shadow


@leaks("growing", holder=("errors_by_sample", "priorities"), bytes_each=32 * FLOAT_BYTES, nodes=True)
def priorities_of_a_replay(device: str) -> Any:
    """Errors by sample as priorities: ``loss.detach()`` for the log, but not here."""
    model = mlp(device, outputs=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    priorities: dict[int, torch.Tensor] = {}
    for step, (x, _) in enumerate(loader(device)):
        errors = model(x).squeeze(1).square()
        loss = errors.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        priorities[step] = errors  # <- leak; fix: priorities[step] = errors.max().item()
    return priorities


@leaks(("growing", "growing-eval"), holder="queue", bytes_each=mlp_graph_bytes())
def queue_of_keys_with_graph(device: str) -> None:
    """MoCo without no_grad around the key encoder: the queue holds every key's graph, and nothing ever walks it."""
    query_net, key_net = mlp(device, outputs=64), mlp(device, outputs=64)
    optimizer = torch.optim.SGD(query_net.parameters(), lr=0.01)
    queue = torch.randn(64, 64, device=device)
    for x, _ in loader(device):
        keys = key_net(x)  # fix here: keys = key_net(x).detach()
        logits = query_net(x) @ torch.cat([keys.detach(), queue.detach()]).T
        loss = F.cross_entropy(logits, torch.arange(32, device=device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue = torch.cat([queue[32:], keys])  # <- leak


@leaks("growing", holder="tape", bytes_each=mlp_graph_bytes() + cross_entropy_bytes() + SCALAR)
def retained_tape(device: str) -> None:
    """Every loss is kept with its graph unfreed, to be walked again at the end, which never comes."""
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tape = []
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # fix here: loss.backward()
        optimizer.step()
        tape.append(loss)  # <- leak; fix: tape.append(loss.item())


class Entry:
    """A link of a list that is linked by hand."""

    __slots__ = ("before", "value")

    def __init__(self, value: torch.Tensor, before: Any) -> None:
        self.value = value  # <- leak of linked_list
        self.before = before


class History:
    def __init__(self) -> None:
        self.head: Entry | None = None

    def push(self, value: torch.Tensor) -> None:
        self.head = Entry(value, self.head)


@leaks("growing", holder="history.head", bytes_each=SCALAR, nodes=True)
def linked_list(device: str) -> None:
    """Deeper than anybody would look; one holder all the same."""
    model, history = mlp(device), History()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, steps=48):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.push(loss)  # <- leak; fix: history.head = None


class Noting(nn.Module):
    """Keeps what each of its calls gave under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(128, 256), nn.Linear(256, 10)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.second(self.first(x).relu())
        setattr(self, f"out_{self.calls}", out)  # <- leak of attributes_with_numbers; fix: pass
        self.calls += 1
        return out


@leaks("growing", holder="model.out_*", bytes_each=32 * 10 * FLOAT_BYTES, nodes=True)
def attributes_with_numbers(device: str) -> None:
    model = Noting().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


local = threading.local()


@leaks("growing", holder="local.losses['loss']", bytes_each=SCALAR, nodes=True)
def variable_of_a_thread(device: str) -> None:
    model = mlp(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    local.losses = {"loss": []}
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        local.losses["loss"].append(loss)  # <- leak; fix: local.losses["loss"].append(loss.item())


class Layers(nn.Module):
    """Its last inputs by number, overwritten in each call; and beside them a list with a number in its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(128, 128) for _ in range(4)])
        self.history4: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            setattr(self, f"seen_{number}", x.detach())
            x = layer(x).relu()
        self.history4.append(x)  # <- leak of list_beside_numbers; fix: self.history4.append(x.detach().cpu().mean())
        return x


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.maps: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        attention = self.inner(x).softmax(-1)
        self.maps.append(attention)  # <- leak of lists_of_several_layers; fix: self.maps[:] = [attention.detach()]
        return x + attention


@leaks("growing", holder="model.*.maps", bytes_each=(32 * 64 * FLOAT_BYTES,) * 3, nodes=True)
def lists_of_several_layers(device: str) -> None:
    """Three objects of one class, each with its own list."""
    model = nn.Sequential(*[Attention() for _ in range(3)], nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device, inputs=64):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


@leaks("growing", holder="model.history4", bytes_each=32 * 128 * FLOAT_BYTES, nodes=True)
def list_beside_numbers(device: str) -> None:
    model = Layers().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in loader(device):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@leaks(
    "growing",
    holder="memory.rows",
    held_bytes=256 * 256 * FLOAT_BYTES,
    nodes=True,
    advice="what is written into memory.rows",
)
def memory_that_is_written_into(device: str) -> None:
    """What each step writes into the rows has a graph, and so the rows have one that goes through all steps; what is read is
    detached. It keeps the numbers of the rows beside."""
    memory = Rows(torch.zeros(256, 256, device=device))
    body, head = nn.Linear(128, 256).to(device), nn.Linear(256, 10).to(device)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    for x, y in loader(device):
        features = body(x).relu()
        numbers = torch.randint(0, 256, (32,), device=device)
        loss = F.cross_entropy(head(features + memory.read(numbers)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory.write(numbers, features)  # fix here: memory.write(numbers, features.detach())


class Rows:
    """The newest features of each sample."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def read(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.rows.detach()[numbers]

    def write(self, numbers: torch.Tensor, features: torch.Tensor) -> None:
        self.rows[numbers] = features  # <- leak of memory_that_is_written_into
