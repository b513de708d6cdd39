"""Memory that caught exceptions retain: named and counted, without references from the search itself."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from vramscope.oom import exception_refs
from vramscope.protocol import messages

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def attempt(model: nn.Module) -> None:
    out = model(torch.empty(8 * 1024, 256, device="cuda"))  # 8 MiB a layer
    raise RuntimeError(f"no number, of {out.numel()}")


def scan(faults: list[BaseException], model: nn.Module) -> messages.Leak | None:
    return exception_refs.kept_by_living(faults, threading.get_ident(), list(model.parameters()), 3)


def test_a_caught_exception_is_named_by_its_variable(uncollected: None) -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(3)]).cuda()
    newest: BaseException | None = None
    try:
        attempt(model)
    except RuntimeError as error:
        newest = error
    assert newest is not None
    found = scan([newest, ValueError("of no traceback")], model)
    assert found is not None
    assert (found.name, found.kind, found.file, found.function) == (
        "newest",
        "overlap-unfreed",
        __file__,
        "test_a_caught_exception_is_named_by_its_variable",
    )
    assert 4 * 8 * MIB <= found.held_bytes < 5 * 8 * MIB, "the input, and three outputs"
    assert found.advice.startswith("keep str(error)")
    in_a_list = [newest]
    newest = None
    listed = scan(in_a_list, model)
    assert listed is not None and listed.name == "in_a_list"


def test_a_handled_exception_is_found_by_its_own_search(uncollected: None) -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU()).cuda()
    try:
        attempt(model)
    except RuntimeError as error:
        assert scan([error], model) is None
        result = exception_refs.kept_by_handled(threading.get_ident(), list(model.parameters()), 3)
        assert result is not None and result.name == "RuntimeError in its except block"


def test_the_searches_keep_no_references(uncollected: None) -> None:
    """A list of the agent's own frames would be a cycle. The memory of the failed attempt would stay until the next
    collection.
    """
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU()).cuda()
    model(torch.empty(1, 256, device="cuda"))  # the first product takes cuBLAS's workspace, which stays
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for looks_within in (True, False):
        kept: list[BaseException] = []
        try:
            attempt(model)
        except RuntimeError as error:
            if looks_within:
                exception_refs.kept_by_handled(threading.get_ident(), list(model.parameters()), 3)
            else:
                kept.append(error)
        if kept:
            gone = weakref.ref(model)
            assert scan(kept, model) is not None and gone() is not None
        kept.clear()
        assert torch.cuda.memory_allocated() == before, looks_within
