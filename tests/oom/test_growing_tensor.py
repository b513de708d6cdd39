"""A request proves that one tensor was being extended."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from vramscope.oom.growing_tensor import GrowingTensor, as_leak, growing_tensor

pytestmark = pytest.mark.gpu

MIB = 1 << 20


def on_card(rows: int, width: int = 1 << 18) -> torch.Tensor:
    """A tensor on the device with one MiB a row."""
    return torch.empty(rows, width, device="cuda")


def asked_for(long: torch.Tensor, piece: torch.Tensor, asked_mib: int) -> GrowingTensor | None:
    return growing_tensor([sys._getframe()], asked_mib * MIB)


def test_a_growing_tensor_is_found_by_the_request_size() -> None:
    found = asked_for(on_card(60), on_card(5), 66)  # (65, rounded up as the allocator does)
    assert found is not None
    assert (found.name, found.held_bytes, found.piece_bytes, found.function) == ("long", 60 * MIB, 5 * MIB, "asked_for")
    leak = as_leak(found, 3, found.held_bytes)
    assert (leak.kind, leak.count, leak.held_bytes) == ("tensor-growth", 1, 60 * MIB)
    assert "It was being extended by 5.00 MiB, and the old tensor stays until the new one exists" in leak.advice
    assert leak.examples == ["float32[60, 262144] on cuda:0"]


def test_tensors_that_are_extended_in_turn_are_counted() -> None:
    """Hidden states of several layers, say: each is as long as the one that the request extends."""

    def gather(kept: tuple[torch.Tensor, ...], new: tuple[torch.Tensor, ...]) -> GrowingTensor | None:
        return growing_tensor([sys._getframe()], 66 * MIB)

    found = gather((on_card(60), on_card(60), on_card(7)), (on_card(5), on_card(5)))
    assert found is not None and found.alike == 2


@pytest.mark.parametrize(
    ("long", "piece", "asked_mib"),
    [
        ((60, 1 << 18), (5, 1 << 18), 60),  # a copy of the longer one
        ((60, 1 << 18), (5, 1 << 18), 70),  # something else
        ((60, 1 << 18), (40, 1 << 18), 100),  # two of a size, joined once
        ((60, 1 << 18), (5, 1 << 17), 62),  # no dimension to join them in
        ((60, 1 << 18), (1, 1 << 18), 62),  # so little more that it may be a copy
    ],
)
def test_other_request_sizes_find_no_tensor(long: tuple[int, int], piece: tuple[int, int], asked_mib: int) -> None:
    assert asked_for(on_card(*long), on_card(*piece), asked_mib) is None


def test_the_outermost_variable_names_the_tensor() -> None:
    class Meter:
        __slots__ = ("__dict__",)

        def __getattr__(self, name: str) -> None:
            raise AssertionError("code of the user's ran")

    def joined(parts: list[torch.Tensor]) -> GrowingTensor | None:
        return growing_tensor([inner := sys._getframe(), inner.f_back], 66 * MIB)

    def update(meter: Meter, state: dict[str, SimpleNamespace]) -> GrowingTensor | None:
        return joined([state["x"].found, on_card(5)])

    meter = Meter()
    found = update(meter, {"x": SimpleNamespace(found=on_card(60))})
    assert found is not None
    assert (found.name, found.function) == ("state['x'].found", "update")
