"""Chains whose links are several objects each are searched to their end, whatever their length."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from vramscope.leaks.scan import paths
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.process.name_roots import Root

LINKS = 100
MOST_NAMES = 5


class Node:
    """A node of a tree, a module of modules, a part of parts."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(left=None, right=None, cache=None)
        self.__dict__.update(attributes)


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
    top = Node(left=Node(cache=[held]))
    found = paths.find([[Root("local", "top", top, None, None, None, "f")]], set(map(id, tensors)), TimeBudget(60.0))
    assert found.complete and len(found.paths) == LINKS
    names = {"".join(one.label for one in path.links()) for path in found.paths.values()}
    assert len(names) <= MOST_NAMES, "one for each of the first links, and one for all others"


def numbers_in_dicts(tensor: torch.Tensor) -> Any:
    part = {"x": None, "loss": None}
    return {"train": part | {"loss": {"train": part | {"x": tensor}, "val": part}}, "val": part}


def lists_of_modules(tensor: torch.Tensor) -> Any:
    return Node(layers=[Node(layers=[Node(layers=[], saved=tensor), Node(layers=[])]), Node(layers=[])])


def sides_of_a_tree(tensor: torch.Tensor) -> Any:
    return Node(left=Node(right=Node(left=Node(cache=tensor))), right=Node(left=Node()))


def deep_sides_of_a_tree(tensor: torch.Tensor) -> Any:
    return Node(left=Node(right=Node(left=Node(right=Node(left=Node(right=Node(cache=tensor)))))))


@pytest.mark.parametrize(
    ("structure", "name"),
    [
        (numbers_in_dicts, "top['train']['loss']['train']['x']"),
        (lists_of_modules, "top.layers[*].layers[*].saved"),
        (sides_of_a_tree, "top.left.right.left.cache"),
        (deep_sides_of_a_tree, "top.left.right.left.right.left.right.cache"),
    ],
)
def test_the_name_of_a_tensor_in_a_nested_structure_exists(structure: Callable[[torch.Tensor], Any], name: str) -> None:
    tensor = torch.empty(1)
    top = structure(tensor)
    found = paths.find([[Root("local", "top", top, None, None, None, "f")]], {id(tensor)}, TimeBudget(60.0))
    assert "".join(one.label for one in found.paths[id(tensor)].links()) == name


def test_paths_into_an_irregular_structure_stay_short() -> None:
    """Each link is like one of the three before it, without a cycle."""
    sides = random.Random(0).choices(("left", "right"), k=50 * paths.DEEPEST)
    tensors = [torch.empty(1) for _ in sides]
    top: Any = None
    for side, tensor in zip(sides, tensors, strict=True):
        top = Node(**{side: top, "cache": tensor})
    found = paths.find([[Root("local", "top", top, None, None, None, "f")]], set(map(id, tensors)), TimeBudget(60.0))
    assert found.complete and found.paths
    assert max(len(path.links()) for path in found.paths.values()) <= paths.DEEPEST / paths.SHARE_OF_REPEATED + 2


def test_containers_of_another_size_are_links_of_their_own() -> None:
    tensor = torch.empty(1)
    nested: list[Any] = [tensor]
    for _ in range(paths.DEEPEST):
        nested = [nested, *range(len(nested))]
    found = paths.find([[Root("local", "nested", nested, None, None, None, "f")]], {id(tensor)}, TimeBudget(60.0))
    assert not found.paths, "the search has a bound in depth"
