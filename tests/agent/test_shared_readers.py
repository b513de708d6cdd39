"""Tensors of calls that run at the same time, and of iterators that share what they read: one holder, whoever has the newest."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from scans import watched


def trained(each_step: Callable[[int], torch.Tensor], steps: int = 60) -> list[Any]:
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watched() as scans:
        for step in range(steps):
            model(each_step(step)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return scans


def wait_with(features: torch.Tensor, until: threading.Event) -> None:
    until.wait(60)
    del features


def wait_beside(features: torch.Tensor, until: threading.Event) -> None:
    until.wait(60)
    del features


def growing(scans: list[Any]) -> list[tuple[str, str]]:
    return [(leak.name, leak.function) for leak in scans[-1].leaks if leak.kind == "tensor-growth"]


def test_what_more_and_more_threads_have_grows_and_is_named_where_they_are_started() -> None:
    over = threading.Event()
    threads: list[threading.Thread] = []

    def start_another(step: int) -> torch.Tensor:
        features = torch.ones(256, 64)
        threads.append(threading.Thread(target=wait_with, args=(features.clone(), over), daemon=True))
        threads[-1].start()
        return features

    try:
        scans = trained(start_another)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert growing(scans) == [("features", "start_another")]
    assert "have not returned (threads or recursion)" in scans[-1].leaks[0].advice


def test_threads_of_a_constant_number_do_not_grow() -> None:
    over = threading.Event()
    threads = [threading.Thread(target=wait_beside, args=(torch.ones(256, 64), over), daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    try:
        scans = trained(lambda step: torch.ones(256, 64))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not growing(scans)


def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(160):
        yield torch.ones(256, 64), torch.ones(256, 1)


def test_what_one_iterator_of_a_tee_has_not_read_is_found_beyond_the_first_block() -> None:
    """It is stored in blocks of 57, and the block that the other one reads is not the one that has the oldest."""
    ahead, behind = itertools.tee(batches())
    next(behind)
    scans = trained(lambda step: next(ahead)[0], steps=110)
    assert [leak.count for leak in scans[-1].leaks if "tee" in leak.name] >= [2 * 90]
    assert not any(closed.why[-1].reason == "growth-stopped" for closed in scans[-1].closed)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("in_turn", [False, True])
def test_a_tee_in_a_container_is_judged_by_what_it_stores(kind: type, in_turn: bool) -> None:
    """Not by the two elements of the container."""
    readers = kind(itertools.tee(batches()))
    scans = trained(lambda step: next(readers[0])[0] + (next(readers[1])[0] if in_turn else 0), steps=110)
    assert any("readers" in leak.name for leak in scans[-1].leaks) != in_turn
    assert not (in_turn and any(scan.leaks for scan in scans))


def test_iterators_of_a_tee_that_read_in_turn_are_no_leak() -> None:
    """They keep up to 57 batches all the same, until the block is read to its end."""
    ahead, behind = itertools.tee(batches())
    next(ahead)
    scans = trained(lambda step: next(ahead)[0] + next(behind)[0], steps=110)
    assert not any(scan.leaks or scan.filling for scan in scans)
