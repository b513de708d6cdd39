"""A cache that takes ever fewer entries is named with its size and its recent growth, and is called no leak."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scans import watched

from vramscope.leaks.policy import POLICY
from vramscope.leaks.verdict.history import Observation, late_growth
from vramscope.protocol.leak_notes import is_cut, slows_down

LOOKS = (3, 7, 11, 15, 21, 29, 41, 59, 74, 99)


def seen(elements: int, at: int) -> Observation:
    return Observation(at, at, elements, 0, 4096 * elements, 0, False, 0, 0, [], elements=elements)


def growth(elements_at: Callable[[int], int]) -> float | None:
    return late_growth([seen(elements_at(at), at) for at in LOOKS])


def test_the_growth_of_late_is_that_of_the_last_third() -> None:
    late = growth(lambda at: round(10 * at**0.5))
    assert late == 4096 * (round(10 * 99**0.5) - round(10 * 59**0.5)) / 40


@pytest.mark.parametrize(
    "elements_at",
    [lambda at: at, lambda at: min(at, 30), lambda at: at % 30, lambda at: 40],
    ids=["steady", "full", "emptied", "constant"],
)
def test_other_growth_is_not_growth_that_slows_down(elements_at: Callable[[int], int]) -> None:
    assert growth(elements_at) is None


def test_neither_bytes_alone_nor_elements_alone_are_growth_that_slows_down() -> None:
    scans = [seen(round(10 * at**0.5), at) for at in LOOKS]
    assert late_growth(scans)
    assert late_growth([dataclasses.replace(one, held_bytes=4096) for one in scans]) is None
    assert late_growth([dataclasses.replace(one, tensors=min(one.tensors, 70)) for one in scans]) is None


def cached(key_of: Callable[[int], int], steps: int = 110) -> list[Any]:
    """Looks at a training with a cache, whose entries have 16 KiB."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    cache: dict[int, torch.Tensor] = {}
    with watched() as scans:
        for step in range(steps):
            key = key_of(step)
            if key not in cache:
                cache[key] = torch.ones(4096)
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return scans


def test_a_cache_that_takes_ever_fewer_entries_is_named_and_no_finding() -> None:
    scans = cached(lambda step: round(6 * step**0.5))
    last = scans[-1]
    assert not any(leak.name == "cache" for scan in scans for leak in scan.leaks)
    (named,) = (leak for leak in last.filling if leak.name == "cache")
    assert slows_down(named) and named.held_bytes >= 50 * 16 * 1024
    assert 0 < (named.growth_bytes_per_step or 0) < named.held_bytes / last.step


def bank_of(rows: int, steps: int = 100) -> list[Any]:
    """Scans of a training with a tensor that gets 8 rows of 4 KiB in each step and is cut to ``rows``."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bank = torch.zeros(0, 1024)
    with watched() as scans:
        for _ in range(steps):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            bank = torch.cat([bank, torch.ones(8, 1024)])
            bank = bank[-rows:]
    return scans


def test_a_tensor_that_is_cut_and_grows_is_named_and_no_finding() -> None:
    scans = bank_of(500_000)
    assert not any(leak.name == "bank" for scan in scans for leak in scan.leaks)
    (named,) = (leak for leak in scans[-1].filling if leak.name == "bank")
    assert is_cut(named) and named.held_bytes >= 8 * 60 * 4096


def test_a_tensor_that_is_cut_and_full_is_not_named() -> None:
    scans = bank_of(200)
    assert not scans[-1].leaks and not scans[-1].filling


def queue_of(rows: int, added: int, steps: int = 100) -> list[Any]:
    """Scans of a training with a tensor of rows of 4 KiB, which loses eight of them in each step and gets others."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    queue = torch.zeros(rows, 1024)
    with watched() as scans:
        for _ in range(steps):
            model(torch.ones(2, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            queue = torch.cat([queue, torch.ones(added, 1024)])
            queue = queue[8:].clone()
    return scans


def test_a_queue_that_loses_fewer_rows_than_it_gets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits as long as a pool with a limit does."""
    assert [leak.name for leak in queue_of(0, added=16)[-1].filling] == ["queue"]
    monkeypatch.setitem(vars(POLICY), "filling_iterations", 50)
    assert [leak.name for leak in queue_of(0, added=16)[-1].leaks] == ["queue"]


def test_a_queue_that_loses_as_many_rows_as_it_gets_is_not_named() -> None:
    scans = queue_of(64, added=8)
    assert not any(scan.leaks for scan in scans) and not scans[-1].filling


def test_a_cache_that_is_full_is_not_named() -> None:
    scans = cached(lambda step: min(step, 12))
    assert not scans[-1].leaks and not scans[-1].filling


def test_one_pause_is_no_growth_that_slows_down() -> None:
    """The cache takes one entry a step, none for some steps before a scan, and one a step again."""
    scans = cached(lambda step: step if step < 90 else max(90, step - 8))
    named = [leak for scan in scans for leak in scan.filling if leak.name == "cache"]
    assert named and not any(map(slows_down, named))


@pytest.mark.parametrize("grows_on", [False, True])
def test_features_that_a_training_reads_are_no_finding_once_it_runs(
    monkeypatch: pytest.MonkeyPatch, grows_on: bool
) -> None:
    """More batches than inference is waited for. What grows with the training's steps is found again."""
    monkeypatch.setitem(vars(POLICY), "inference_patience", 100)
    model = torch.nn.Linear(8, 1024)
    bank = []
    with watched() as scans:
        with torch.no_grad():
            for _ in range(400):
                bank.append(model(torch.ones(2, 8)))
        assert any(leak.name == "bank" for leak in scans[-1].leaks)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(40):
            out = model(torch.ones(2, 8))
            if grows_on:
                bank.append(out.detach())
            (out - bank[0]).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = [leak.per for leak in scans[-1].leaks if leak.name == "bank"]
    assert found == (["step"] if grows_on else [])
    if not grows_on:
        assert [one.name for one in scans[-1].closed] == ["bank"]
