"""Entries of a model's container that no optimizer trains any more leak, unless somebody still uses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from scans import watched
from torch import nn

from vramscope.process.module_calls import module_calls

STEPS = 6
HEAD_BYTES = (64 * 256 + 256) * 4


class Recognizer(nn.Module):
    """A body that is trained by nobody, and one head for each language."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(32, 64).requires_grad_(False)
        self.languages = nn.ModuleDict()

    def forward(self, x: torch.Tensor, language: str) -> torch.Tensor:
        return self.languages[language](self.body(x))


class Cascade(nn.Module):
    """Each layer is trained on what the layers before it compute without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for layer in self.layers[:-1]:
                x = layer(x)
        return self.layers[-1](x)


class Offsets(nn.Module):
    """One vector of offsets for each user."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.ParameterDict()

    def forward(self, x: torch.Tensor, user: str) -> torch.Tensor:
        return x + self.offsets[user]


def train(call: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    for _ in range(STEPS):
        optimizer.zero_grad()
        call().square().mean().backward()
        optimizer.step()


def findings_of(scans: list[Any]) -> list[Any]:
    return [leak for scan in scans for leak in scan.leaks]


def train_languages(model: Recognizer, after_each: Callable[[str], None] = lambda language: None) -> None:
    for number in range(16):
        language = f"{chr(97 + number)}x"
        model.languages[language] = nn.Linear(64, 256)
        optimizer = torch.optim.SGD(model.languages[language].parameters(), lr=0.1)
        train(lambda named=language: model(torch.randn(4, 32), named), optimizer)
        after_each(language)


def test_the_gradients_of_a_head_for_each_task_are_found() -> None:
    model = Recognizer()
    with watched(5.0) as scans:
        train_languages(model)
    newest = scans[-1].leaks
    assert [(leak.kind, leak.name) for leak in newest] == [("tensor-growth", "model.languages")]
    assert newest[0].held_bytes % HEAD_BYTES == 0 and 5 * HEAD_BYTES <= newest[0].held_bytes < 16 * HEAD_BYTES, (
        "gradients"
    )
    assert newest[0].file == __file__ and newest[0].function == "train_languages"
    assert ".grad = None" in newest[0].advice
    assert not module_calls.listens


def test_entries_of_a_parameter_dict_are_found_too() -> None:
    model = Offsets()
    with watched(5.0) as scans:
        for number in range(16):
            user = f"u{number}"
            model.offsets[user] = nn.Parameter(torch.randn(8, 4096))
            train(lambda named=user: model(torch.ones(8, 4096), named), torch.optim.SGD([model.offsets[user]], lr=0.1))
    assert {leak.name for leak in findings_of(scans)} == {"model.offsets"}


def test_heads_that_are_evaluated_are_in_use() -> None:
    model = Recognizer().train()

    def evaluate(_: str) -> None:
        with torch.no_grad():
            for language in model.languages:
                model(torch.randn(4, 32), language)

    with watched(5.0) as scans:
        train_languages(model, evaluate)
    assert scans and not findings_of(scans)


def test_layers_that_compute_without_gradients_are_in_use() -> None:
    model = Cascade()
    with watched(5.0) as scans:
        for _ in range(16):
            model.layers.append(nn.Linear(128, 128))
            optimizer = torch.optim.SGD(model.layers[-1].parameters(), lr=0.1)
            train(lambda: model(torch.randn(4, 128)), optimizer)
    assert scans and not findings_of(scans)


def test_heads_with_an_optimizer_each_are_in_training() -> None:
    """They step in turn: in the first round the gradients of ever more heads wait for the next."""
    model = Recognizer()
    optimizers = {}
    for number in range(16):
        head = model.languages[f"l{number}"] = nn.Linear(64, 256)
        optimizers[f"l{number}"] = torch.optim.SGD(head.parameters(), lr=0.1)
    with watched() as scans:
        for language, optimizer in optimizers.items():
            train(lambda named=language: model(torch.randn(4, 32), named), optimizer)
    assert scans and not findings_of(scans)


def test_heads_of_one_optimizer_are_in_training() -> None:
    model = Recognizer()
    model.languages["all"] = nn.Linear(64, 256)
    optimizer = torch.optim.SGD(model.languages["all"].parameters(), lr=0.1)
    with watched(5.0) as scans:
        for number in range(16):
            named = f"l{number}"
            model.languages[named] = nn.Linear(64, 256)
            optimizer.add_param_group({"params": model.languages[named].parameters()})
            for _ in range(STEPS):  # the gradients of the others stay as they are
                model.languages[named].zero_grad()
                model(torch.randn(4, 32), named).square().mean().backward()
                optimizer.step()
    assert scans and not findings_of(scans)


def test_heads_without_gradients_are_no_finding() -> None:
    """A frozen head may serve later: its parameters are the model."""
    model = Recognizer()

    def free(language: str) -> None:
        model.languages[language].zero_grad(set_to_none=True)

    with watched(5.0) as scans:
        train_languages(model, free)
    assert scans and not findings_of(scans)
