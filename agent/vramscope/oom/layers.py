"""The childless modules of a model, in the order in which they were made: how wide, which have run, and which blocks are alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.leaks.scan import storages

if TYPE_CHECKING:
    import torch

WIDTHS: Final = ("out_features", "out_channels", "embedding_dim", "num_features", "nf")
"""attributes that tell the width of a module's output; ``nf`` is that of transformers' Conv1D"""


class Layer(NamedTuple):
    """A childless module of a forward that runs."""

    module: torch.nn.Module
    width: int
    """of its output"""
    has_run: bool | None
    """None: nothing is kept of it, and so nobody knows"""

    @property
    def kept_width(self) -> int:
        """Of what the backward keeps of it: an embedding keeps the numbers of its words, however wide they are."""
        return 0 if hasattr(self.module, "num_embeddings") else self.width


class Blocks(NamedTuple):
    """Modules of a model that are alike, one of which runs."""

    leaves: set[int]
    """ids of the childless modules in all of them, and between them"""
    others: set[int]
    """the same, of those that do not run now"""


def layers_of(root: torch.nn.Module, reached: Collection[int], *, wanted: bool) -> list[Layer]:
    """``reached``: storages of the weights to which the graph leads; ``wanted``: the input wants gradients."""
    leaves = list(leaves_of(root))
    return list(map(Layer, leaves, widths_of(leaves), _ran(leaves, reached, wanted=wanted)))


def leaves_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.modules():
        if next(child.children(), None) is None:
            yield child


def widths_of(leaves: Iterable[torch.nn.Module]) -> list[int]:
    """Of each one's output, as its own attributes tell it; where they do not (ReLU, Dropout), as of the one before it."""
    widths: list[int] = []
    for leaf in leaves:
        told = (vars(leaf).get(name) for name in WIDTHS)
        width = next((value for value in told if type(value) is int and value > 0), None)
        widths.append(width or (widths[-1] if widths else 1))
    return widths


def _ran(leaves: Sequence[torch.nn.Module], reached: Collection[int], *, wanted: bool) -> list[bool | None]:
    """Of each childless module whether it has run: the graph leads to a weight that it alone has. One without any goes as the one
    before it; None of those before the first that wants gradients (``wanted``: the input does), of which nothing is kept."""
    owners = Counter(id(one) for leaf in leaves for one in leaf.parameters(recurse=False))
    ran: list[bool | None] = []
    last: bool | None = True if wanted else None
    for leaf in leaves:
        trained = [one for one in leaf.parameters(recurse=False) if one.requires_grad and owners[id(one)] == 1]
        if trained:
            found = [storages.storage_of(one) for one in trained]
            last = any(one is not None and one[0] in reached for one in found)
        ran.append(last)
    return ran


def blocks_of(root: torch.nn.Module, name: str, layers: Iterable[Layer]) -> Blocks:
    """The outermost modules on the way to that of this name which come several times, and of which something is kept. In a row of
    single layers those between that have no weights are a part of them."""
    keeping = {id(layer.module) for layer in layers if layer.has_run is not None}
    parent = root
    for part in name.split(".") if name else ():
        child = parent.get_submodule(part)
        brothers = list(parent.children())
        before = [one for one in brothers[: brothers.index(child) + 1] if next(one.parameters(), None) is not None]
        block = before[-1] if before else child
        shape = _shape(block)
        alike = [
            one for one in brothers if _shape(one) == shape and any(id(leaf) in keeping for leaf in leaves_of(one))
        ]
        if len(alike) > 1:
            plain = [one for one in brothers if next(one.parameters(), None) is None]
            return Blocks(_leaves_in([*alike, *plain]), _leaves_in(one for one in alike if one is not block))
        parent = child
    return Blocks(set(), set())


def _leaves_in(modules: Iterable[torch.nn.Module]) -> set[int]:
    return {id(leaf) for module in modules for leaf in leaves_of(module)}


def _shape(module: torch.nn.Module) -> tuple[object, ...]:
    return type(module), *(tuple(one.shape) for one in module.parameters())
