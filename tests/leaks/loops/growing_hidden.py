"""Graphs that grow in number in places that no variable names plainly."""

from __future__ import annotations

import concurrent.futures
import contextlib
import contextvars
import logging
import logging.handlers
import queue
import types
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from truth import leaks

from .models import FLOAT_BYTES, loader, mlp

metrics: contextvars.ContextVar[list[Any]] = contextvars.ContextVar("metrics")
run = types.SimpleNamespace(losses=[])


def step_on(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def training(device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = mlp(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


@leaks("growing", holder="losses", bytes_each=FLOAT_BYTES, nodes=True)
def list_that_is_being_built(device: str) -> int:
    """A comprehension over all steps: until it is done the list lies on the stack, and has no name."""
    model, optimizer = training(device)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        return step_on(model, optimizer, x, y)

    # fix here: step = lambda x, y: step_on(model, optimizer, x, y).item()
    losses = [step(x, y) for x, y in loader(device)]  # <- leak
    return len(losses)


@leaks("growing", holder="curve", bytes_each=FLOAT_BYTES, nodes=True)
def array_of_objects(device: str) -> Any:
    """What lies in an array of numpy's is not seen by the garbage collector."""
    model, optimizer = training(device)
    curve = np.empty(1000, dtype=object)
    for step, (x, y) in enumerate(loader(device)):
        loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).item()
        curve[step] = loss  # <- leak
    return curve


@leaks("growing", holder="metrics", bytes_each=FLOAT_BYTES, nodes=True)
def context_variable(device: str) -> None:
    metrics.set([])
    model, optimizer = training(device)
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).item()
        metrics.get().append(loss)  # <- leak
    metrics.set([])


@leaks("growing", holder="run.losses", bytes_each=FLOAT_BYTES, nodes=True)
def namespace(device: str) -> None:
    run.losses = []
    model, optimizer = training(device)
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).item()
        run.losses.append(loss)  # <- leak


def note(record: types.SimpleNamespace, loss: torch.Tensor) -> None:
    record.rows.append(loss)  # <- leak of rows_of_a_namespace; fix: record.rows.append(loss.item())


@leaks("growing", holder="rows", bytes_each=FLOAT_BYTES, nodes=True)
def rows_of_a_namespace(device: str) -> None:
    """Who adds to it calls it by another name than who made it."""
    mine = types.SimpleNamespace()
    mine.rows = []
    model, optimizer = training(device)
    for x, y in loader(device):
        note(mine, step_on(model, optimizer, x, y))


@leaks("growing", holder="step_losses", bytes_each=FLOAT_BYTES, nodes=True)
def list_of_a_local_class(device: str) -> None:
    """The list is the class's, as it happens where __init__ was forgotten."""

    class Training:
        step_losses: list[Any] = []  # noqa: RUF012

        def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
            loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).item()
            self.step_losses.append(loss)  # <- leak

    model, optimizer = training(device)
    mine = Training()
    for x, y in loader(device):
        mine.step(x, y)


class Printer:
    def after(self, loss: Any) -> None:
        pass


class Recorder(Printer):
    def __init__(self) -> None:
        self.kept: list[Any] = []

    def after(self, loss: Any) -> None:
        # fix here: loss = loss.item()
        self.kept.append(loss)  # <- leak of one_callback_of_several


@leaks("growing", holder="kept", bytes_each=FLOAT_BYTES, nodes=True)
def one_callback_of_several(device: str) -> None:
    """It is the callback's list that grows, not the list of callbacks."""
    model, optimizer = training(device)
    callbacks = [Printer(), Recorder(), Printer()]
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)
        for callback in callbacks:
            callback.after(loss)


@leaks("growing", holder="cleanup", bytes_each=FLOAT_BYTES, nodes=True)
def exit_stack(device: str) -> None:
    """What is to be called at the end keeps its arguments until then."""
    model, optimizer = training(device)
    with contextlib.ExitStack() as cleanup:
        for x, y in loader(device):
            loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).item()
            cleanup.callback(str, loss)  # <- leak


@leaks("growing", holder="futures", bytes_each=FLOAT_BYTES, nodes=True)
def results_of_a_pool(device: str) -> None:
    """Graphs that are made on another thread, where sequence numbers start again."""
    model, optimizer = training(device)
    futures: list[Any] = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for x, y in loader(device):
            loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).item()
            futures.append(pool.submit(lambda value: value * 2, loss))  # <- leak
            futures[-1].result()


class Unread(queue.SimpleQueue):  # type: ignore[type-arg]
    """Has an empty ``__dict__``: what is in it only C knows."""


@leaks("growing", holder="unread", bytes_each=FLOAT_BYTES, nodes=True)
def queue_of_a_class_of_ones_own(device: str) -> None:
    unread = Unread()
    model, optimizer = training(device)
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)
        unread.put(loss)  # <- leak; fix: unread.put(loss.item())


@leaks("growing", holder="values", bytes_each=(512 * FLOAT_BYTES, 512 * 8), nodes=True)
def results_of_a_maximum(device: str) -> int:
    """What ``max(dim)`` gives is a tuple of PyTorch's own, of which the garbage collector does not know; the tensors were meant."""
    model, optimizer = training(device)
    values: list[Any] = []
    for x, y in loader(device, rows=512):
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(logits.max(1))  # <- leak; fix: values.append(logits.max(1).values.mean().item())
    return len(values)


@leaks("growing", holder="handler.buffer", bytes_each=(FLOAT_BYTES, FLOAT_BYTES), nodes=True)
def messages_of_a_logger(device: str) -> None:
    """A record keeps the arguments of its message until it is written, and this handler writes a thousand at a time."""
    model, optimizer = training(device)
    handler = logging.handlers.MemoryHandler(capacity=1000)  # <- leak
    logger = logging.Logger("steps")
    logger.addHandler(handler)
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        logger.info("%s %s", loss, norm)  # <- leak; fix: logger.info("%s %s", loss.item(), norm.item())


class Options:
    """Has an attribute of the name that a logger's records have."""

    def __init__(self, args: Any) -> None:
        self.args = args


@leaks("growing", holder="smoothed", nodes=True)
def average_in_a_buffer(device: str) -> None:
    """A buffer belongs to the model, but not the graph that was assigned with it."""
    model, optimizer = training(device)
    model.register_buffer("smoothed", torch.zeros((), device=device))
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).detach()
        model.smoothed = 0.9 * model.smoothed + 0.1 * loss  # <- leak


@leaks("growing", holder="state", nodes=True)
def average_in_the_state_of_an_optimizer(device: str) -> None:
    model, optimizer = training(device)
    state = optimizer.state[next(model.parameters())]
    state["level"] = torch.zeros((), device=device)
    for x, y in loader(device):
        loss = step_on(model, optimizer, x, y)  # fix here: loss = step_on(model, optimizer, x, y).detach()
        state["level"] = 0.9 * state["level"] + 0.1 * loss  # <- leak
