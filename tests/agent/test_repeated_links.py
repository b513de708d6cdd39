"""Chains whose links are several objects each are searched to their end, whatever their length."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vramscope.leaks.scan import paths
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.process.name_roots import Root

LINKS = 100


def chained(held: Any, tensor: torch.Tensor) -> Any:
    return itertools.chain([tensor], held or ())


def in_tuples(held: Any, tensor: torch.Tensor) -> Any:
    return {"value": tensor, "parents": ((held, 1),)}


def directly(held: Any, tensor: torch.Tensor) -> Any:
    return {"value": tensor, "before": held}


@pytest.mark.parametrize("link", [chained, in_tuples, directly])
def test_each_tensor_of_a_long_chain_is_reached_by_few_links(link: Callable[[Any, torch.Tensor], Any]) -> None:
    tensors = [torch.empty(1) for _ in range(LINKS)]
    held = None
    for tensor in tensors:
        held = link(held, tensor)
    found = paths.find([[Root("local", "held", held, None, None, None, "f")]], set(map(id, tensors)), TimeBudget(60.0))
    assert found.complete and len(found.paths) == LINKS
    assert max(path.depth for path in found.paths.values()) < paths.DEEPEST
    assert len({"".join(one.label for one in path.links()) for path in found.paths.values()}) <= 3


def test_containers_of_another_size_are_links_of_their_own() -> None:
    tensor = torch.empty(1)
    nested: list[Any] = [tensor]
    for _ in range(paths.DEEPEST):
        nested = [nested, *range(len(nested))]
    found = paths.find([[Root("local", "nested", nested, None, None, None, "f")]], {id(tensor)}, TimeBudget(60.0))
    assert not found.paths, "the search has a bound in depth"
