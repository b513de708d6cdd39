"""The search for sparse tensors runs inside a read of the emulated device, where no code of the program may run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vramscope.dry_run import sparse_entries

called: list[Any] = []


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called.append(function)
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called.append(function)
        return function(*args, **(kwargs or {}))


class Raising(torch.Tensor):
    @property
    def is_sparse(self) -> bool:
        raise ValueError("a question of the agent")


def test_no_code_of_the_program_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    raising = torch.zeros(2).as_subclass(Raising)
    found = torch.ones(7).to_sparse()
    with FunctionMode(), DispatchMode():
        called.clear()
        entries = sparse_entries.now()
        during = list(called)
    assert (entries, during) == (found._nnz(), [])
    other = torch.ones(8).to_sparse()
    assert sparse_entries.now() is None, "two numbers of entries"
    del raising, other


def test_no_tuple_that_another_thread_makes_is_broken() -> None:
    """Up to Python 3.13, tuple() of a generator raises SystemError while a list of all objects exists."""
    kept = [[number] for number in range(300_000)]
    faults: list[BaseException] = []
    ended = threading.Event()

    def make() -> None:
        while not ended.is_set():
            try:
                tuple(number for number in range(200))
            except SystemError as fault:
                faults.append(fault)

    threads = [threading.Thread(target=make) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(15):
        sparse_entries.now()
    ended.set()
    for thread in threads:
        thread.join()
    assert (faults, len(kept)) == ([], 300_000)
