"""Routers are noted, and a program's calls of top-k and argmax stay as they were."""

from __future__ import annotations

import pytest
import torch

import vramscope.dry_run.routing as routing
from vramscope.dry_run import builtin_functions
from vramscope.process.patching import Patches

pytestmark = pytest.mark.gpu


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``routing.install`` does, for the time of a test."""
    for owner in (torch, torch.Tensor):
        monkeypatch.setattr(owner, "topk", owner.topk)
        monkeypatch.setattr(owner, "argmax", owner.argmax)
    patches = Patches()
    for owner in (torch, torch.Tensor):
        patches.wrap(owner, "topk", routing._topk)
        patches.wrap(owner, "argmax", routing._argmax)


@pytest.mark.usefixtures("patched")
def test_every_way_of_calling_them_works() -> None:
    y = torch.randn(6, 8, device="cuda")
    calls = [
        lambda: torch.topk(y, 2),
        lambda: torch.topk(input=y, k=2),
        lambda: torch.topk(y, k=2, dim=-1, sorted=False),
        lambda: torch.topk(y, 2, 1),
        lambda: y.topk(k=2, dim=1),
        lambda: torch.topk(y, 2, out=(torch.empty(6, 2, device="cuda"), torch.empty(6, 2, device="cuda", dtype=torch.long))),
    ]  # fmt: skip
    for call in calls:
        routing._last.routing = None
        assert call()[1].shape == (6, 2)
        assert routing.last() == routing.Routing(8, 12, is_topk=True)
    for call in (lambda: y.argmax(axis=1), lambda: torch.argmax(input=y, dim=1), lambda: y.argmax(-1, True)):
        routing._last.routing = None
        assert call().numel() == 6
        assert routing.last() == routing.Routing(8, 6)
    routing._last.routing = None
    assert y.argmax().numel() == 1
    assert routing.last() is None
    with pytest.raises(TypeError):
        torch.topk(y)


def test_the_nearest_of_many_rows_are_no_experts() -> None:
    """``topk()`` also chooses hard negatives from a memory bank."""
    assert routing.Routing(8, 8192, is_topk=True).looks_like_experts(8192)
    assert not routing.Routing(16384, 16384, is_topk=True).looks_like_experts(256)


def two_largest(x: torch.Tensor) -> torch.Tensor:
    return torch.topk(x, 2)[0]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_wrapped_function_is_itself_in_torchscript(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.jit import _builtins

    monkeypatch.setattr(_builtins, "_builtin_table", dict(_builtins._get_builtin_table()))
    monkeypatch.setattr(torch, "topk", torch.topk)
    builtin_functions.wrap(Patches(), torch, "topk", routing._topk)
    assert torch.jit.script(two_largest)(torch.arange(5.0)).tolist() == [4.0, 3.0]
