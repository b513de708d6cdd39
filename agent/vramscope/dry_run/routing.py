"""Routers of mixtures of experts: among how many experts the last top-k chose, and how many choices it made."""

from __future__ import annotations

import threading
from typing import Any, Final, NamedTuple

from vramscope.dry_run import builtin_functions
from vramscope.guard import guarded
from vramscope.process.patching import Patches

MOST_EXPERTS: Final = 1024
"""Number of candidates up to which a choice may be one among experts. Mixtures have some hundreds of experts at most."""


class Routing(NamedTuple):
    """Choices of a router. Balanced, each expert is chosen equally often."""

    experts: int
    choices: int
    """Rows times choices for each row."""
    is_topk: bool = False
    """True if ``topk()`` chose, as routers do. Classifiers choose with ``argmax()``, too."""

    @property
    def shares(self) -> list[int]:
        """Choices of each expert, as equal as whole numbers can be."""
        each, rest = divmod(self.choices, self.experts)
        return [each + (number < rest) for number in range(self.experts)]

    def selected(self, elements: int) -> int:
        """Return the rows that a mask of this size selects: those of one expert; all if it is no mask over choices or rows."""
        return self.shares[0] if self.shares[0] < elements <= self.choices else elements

    def looks_like_experts(self, elements: int) -> bool:
        """True if a mask of this size may be one over the rows of an expert: ``topk()`` chose, and each expert has rows."""
        return (
            self.is_topk and self.experts <= MOST_EXPERTS and self.shares[-1] > 0 and self.selected(elements) < elements
        )


class _Last(threading.local):
    routing: Routing | None = None


_last = _Last()


def last() -> Routing | None:
    """Return the routing that this thread computed last; None if it computed none."""
    return _last.routing


@guarded("the routers")
def install() -> None:
    """Note each top-k and argmax from now on."""
    import torch

    patches = Patches()
    for owner in (torch, torch.Tensor):
        builtin_functions.wrap(patches, owner, "topk", _topk)
        builtin_functions.wrap(patches, owner, "argmax", _argmax)


def _topk(original: Any, *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    _note(args, kwargs, dim_at=2, last=-1, indices=found, is_topk=True)
    return found


def _argmax(original: Any, *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    _note(args, kwargs, dim_at=1, last=None, indices=found)
    return found


@guarded("a router")
def _note(args: Any, kwargs: Any, *, dim_at: int, last: int | None, indices: Any, is_topk: bool = False) -> None:
    """Note a choice. ``dim_at``: position of the argument ``dim``; ``last``: its default."""
    tensor = args[0] if args else kwargs["input"]
    dim = kwargs.get("dim", kwargs.get("axis", args[dim_at] if len(args) > dim_at else last))
    chosen = indices[1] if is_topk else indices
    if dim is not None and tensor.is_cuda and tensor.dim():
        _last.routing = Routing(tensor.shape[dim], chosen.numel(), is_topk)
