"""Childless modules of a model, in the order of their creation: their widths, which have run, and which blocks are similar."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.leaks.scan import storages
from vramscope.process.first_parameter import first_parameter

if TYPE_CHECKING:
    import torch

WIDTHS: Final = ("out_features", "out_channels", "embedding_dim", "num_features", "nf")
"""Attributes with the width of a module's output; ``nf`` is that of transformers' Conv1D."""


class Layer(NamedTuple):
    """Childless module of a running forward."""

    module: torch.nn.Module
    width: int
    """Width of its output."""
    has_run: bool | None
    """None: nothing of it is kept, so it is not known."""

    @property
    def kept_width(self) -> int:
        """Width of what the backward keeps. An embedding keeps only its indices, however wide it is."""
        return 0 if hasattr(self.module, "num_embeddings") else self.width


class Blocks(NamedTuple):
    """Similar modules of a model, one of which runs."""

    leaves: set[int]
    """Ids of the childless modules in all of them, and between them."""
    others: set[int]
    """The same, without the running one."""


def layers_of(root: torch.nn.Module, reached: Collection[int], *, wanted: bool) -> list[Layer]:
    """All layers.

    reached   storages of the weights that the graph leads to
    wanted    the input requires gradients
    """
    leaves = list(leaves_of(root))
    return list(map(Layer, leaves, widths_of(leaves), _ran(leaves, reached, wanted=wanted)))


def leaves_of(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    """Modules without children."""
    for child in module.modules():
        if next(child.children(), None) is None:
            yield child


def widths_of(leaves: Iterable[torch.nn.Module]) -> list[int]:
    """Width of each output, from the module's attributes; where it has none (ReLU, Dropout), as of the module before."""
    widths: list[int] = []
    for leaf in leaves:
        values = (vars(leaf).get(name) for name in WIDTHS)
        width = next((value for value in values if type(value) is int and value > 0), None)
        widths.append(width or (widths[-1] if widths else 1))
    return widths


def _ran(leaves: Sequence[torch.nn.Module], reached: Collection[int], *, wanted: bool) -> list[bool | None]:
    """Whether each module has run: then the graph leads to a weight that it alone has.

    A module without weights counts as the one before. None before the first that requires gradients (``wanted``: the
    input does), because nothing is kept of these.
    """
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
    """Outermost repeated modules on the path to this name of which something is kept.

    In a sequence of single layers, those without weights in between belong to them.
    """
    keeping = {id(layer.module) for layer in layers if layer.has_run is not None}
    parent = root
    for part in name.split(".") if name else ():
        child = parent.get_submodule(part)
        siblings = list(parent.children())
        before = [one for one in siblings[: siblings.index(child) + 1] if first_parameter(one) is not None]
        block = before[-1] if before else child
        shape = _shape(block)
        alike = [
            one for one in siblings if _shape(one) == shape and any(id(leaf) in keeping for leaf in leaves_of(one))
        ]
        if len(alike) > 1:
            plain = [one for one in siblings if first_parameter(one) is None]
            return Blocks(_leaves_in([*alike, *plain]), _leaves_in(one for one in alike if one is not block))
        parent = child
    return Blocks(set(), set())


def _leaves_in(modules: Iterable[torch.nn.Module]) -> set[int]:
    return {id(leaf) for module in modules for leaf in leaves_of(module)}


def _shape(module: torch.nn.Module) -> tuple[object, ...]:
    return type(module), *(tuple(one.shape) for one in module.parameters())
