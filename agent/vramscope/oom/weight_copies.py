"""Copies of a model's weights in dicts that the user's code refers to: a checkpoint that was read, the best state so far, an
average of the weights.

A dict is a copy if it has parameters of the model by name and shape. Sizes alone prove nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import islice
from pathlib import PurePath
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vramscope.leaks.holders.line_search import attribute_kept_at, name_kept_at
from vramscope.leaks.holders.user_code import own_codes
from vramscope.oom.other_models import copies_by_name
from vramscope.process.name_roots import Root, roots

if TYPE_CHECKING:
    import torch

DEPTH: Final = 3
"""Containers and objects that a variable may lead through: ``checkpoint["model"]``, ``average.shadow``."""
MOST_OPENED: Final = 5_000
"""Number of dicts and objects that are opened. About 1 µs each."""
MOST_ELEMENTS: Final = 100
"""Number of elements that are examined of a list."""
DICTS: Final = (dict, OrderedDict)
EMPTY: Final = CellType()


class WeightCopy(NamedTuple):
    """Tensors of one dict."""

    name: str
    """Variable that leads to it, and the line that assigns it: ``checkpoint (train.py:22)``."""
    tensors: list[torch.Tensor]


def weight_copies(weights: Mapping[str, torch.Tensor]) -> list[WeightCopy]:
    """Copies of these parameters (by name) that variables of the user's functions and modules lead to, each once."""
    found: list[WeightCopy] = []
    known: set[int] = set()
    left = MOST_OPENED
    for root in (root for several in roots() for root in several):
        waiting: list[tuple[object, str, int]] = [(root.value, "", 0)]
        while waiting and left > 0:
            value, attribute, depth = waiting.pop()
            if id(value) in known or type(value).__module__.partition(".")[0] == "torch":
                continue
            known.add(id(value))
            inner = _opened(value)
            left -= 1
            if inner is None:
                continue
            if type(value) in DICTS and any(map(weights.__contains__, filter(_is_text, inner))):
                tensors = list(copies_by_name(weights, [inner]))
                if tensors:
                    found.append(WeightCopy(_spoken(root, attribute), tensors))
                    continue
            if depth < DEPTH:
                names = type(value) not in (*DICTS, list, tuple)
                waiting += [
                    (one, f"{attribute}.{key}" if names else attribute, depth + 1)
                    for key, one in reversed(list(inner.items()))
                ]
    return found


def _opened(value: object) -> Mapping[Any, Any] | None:
    """What a dict, a list, a function's closure or an object of the user's own class has; None for anything else.

    Runs none of the user's code.
    """
    kind = type(value)
    if kind in DICTS:
        return dict(value)  # type: ignore[call-overload, no-any-return]
    if kind is list or issubclass(kind, tuple):
        return dict(enumerate(islice(tuple.__iter__(value) if kind is not list else value, MOST_ELEMENTS)))  # type: ignore[arg-type, call-overload]
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        return {name: cell.cell_contents for name, cell in cells if cell != EMPTY}
    if own_codes(kind):
        attributes = getattr(value, "__dict__", None)
        return dict(attributes) if type(attributes) is dict and "_parameters" not in attributes else None
    return None


def _is_text(key: object) -> bool:
    return type(key) is str


def _spoken(root: Root, attribute: str) -> str:
    place = _place(root, attribute)
    return f"{root.spoken}{attribute}" + (f" ({place})" if place else "")


def _place(root: Root, attribute: str) -> str:
    at = None
    if root.code is not None and not attribute:
        at = name_kept_at(root.code, root.name, container=False)
    elif attribute:
        at = attribute_kept_at(own_codes(type(root.value)), attribute.rpartition(".")[2], container=False)
    return "" if at is None else f"{PurePath(at[0].co_filename).name}:{at[1]}"


def named_copies(weights: Mapping[str, torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """(name of the copy, tensor) of each."""
    return [(copy.name, tensor) for copy in weight_copies(weights) for tensor in copy.tensors]
