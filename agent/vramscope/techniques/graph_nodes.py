"""What is read of an autograd graph before it is walked: the names of its nodes, what checkpoints left in it, and where what they
saved lies."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

MOST_NODES: Final = 20_000
"""of a graph, whose names are read: 20 ms"""
MOST_OPENED: Final = 500
"""of these, whose saved tensors are looked at where somebody's hooks packed them: some 20 µs each"""
MOST_DEPTH: Final = 2
MOST_VALUES: Final = 8
"""that are looked at in what was packed, and in what stands in that"""
SAVED: Final = "_raw_saved_"
REENTRANT: Final = "CheckpointFunctionBackward"
"""what stands in the graph for all that a reentrant checkpoint runs"""
PRODUCTS: Final = ("BmmBackward", "BaddbmmBackward")
SOFTMAX: Final = ("SoftmaxBackward", "SafeSoftmaxBackward")
BETWEEN: Final = (
    "View", "UnsafeView", "ReshapeAlias", "Expand", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Clone", "ToCopy", "Div", "Mul",
    "Add", "Sub", "Tanh", "Where", "MaskedFill", "NativeDropout", "FusedDropout",
)  # fmt: skip
"""what is done with scores and weights of attention on the way: scaled, masked, dropped out"""
MOST_BETWEEN: Final = 8
"""of these, one after the other"""


def begins_with(root: Any) -> str:
    """The name of the node that made a tensor; "" where none did."""
    return next((node.name() for node in _nodes(root, MOST_NODES)), "")


def names_of_nodes(root: Any) -> Counter[str]:
    """Names of the nodes of the graph behind a tensor, and how many of each. Some 1 µs a node."""
    return names_and_oldest(root)[0]


def names_and_oldest(root: Any) -> tuple[Counter[str], int | None]:
    """The same, and the number that autograd has given to the one that was made first; None where there is none."""
    names: Counter[str] = Counter()
    oldest: int | None = None
    for node in _nodes(root, MOST_NODES):
        names[node.name()] += 1
        number = node._sequence_nr()
        oldest = number if oldest is None or number < oldest else oldest
    return names, oldest


def softmaxes_between_products(root: Any) -> int:
    """How many of the graph's are fed by a batched matrix product and feed one: attention that has its scores as a whole.

    A router's softmax is fed by a layer (in an einsum by a batch of one), and a loss's feeds nothing. Some 1 µs a node.
    """
    fed: set[Any] = set()
    for node in _nodes(root, MOST_NODES):
        if node.name().startswith(PRODUCTS):
            fed.update(_behind(node, SOFTMAX))
    return sum(any(_matrices(product) > 1 for product in _behind(softmax, PRODUCTS)) for softmax in fed)


def _behind(node: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """The nodes of these names behind one, with nothing but BETWEEN in between."""
    seen: set[Any] = set()
    level = [node]
    for _ in range(MOST_BETWEEN):
        children = {child for one in level for child, _ in one.next_functions if child is not None} - seen
        seen |= children
        yield from (child for child in children if child.name().startswith(names))
        level = [child for child in children if child.name().partition("Backward")[0] in BETWEEN]


def _matrices(product: Any) -> int:
    """How many a batched matrix product has made; 0 where PyTorch does not tell."""
    told = getattr(product, "_input_metadata", ())
    return int(told[0].shape[0]) if told else 0


def checkpointed_functions(root: Any) -> Iterator[Any]:
    """What the reentrant checkpoints in the graph behind a tensor were given. Some 1 µs a node."""
    return (getattr(node, "run_function", None) for node in _nodes(root, MOST_NODES) if node.name() == REENTRANT)


def saves_on_host(root: Any) -> bool:
    """Whether what the graph's saved tensors were packed into lies in the host's memory: tensors, or what has such in it.

    PyTorch 2.13 shows what a hook packed; False where it does not.
    """
    return any(_is_on_host(saved.data) for node in _nodes(root, MOST_OPENED) for saved in _packed_in(node))


def _nodes(root: Any, most: int) -> Iterator[Any]:
    import torch

    if not isinstance(root, torch.Tensor) or root.grad_fn is None:
        return
    seen: set[Any] = {root.grad_fn}
    stack: list[Any] = [root.grad_fn]
    while stack and len(seen) < most:
        node = stack.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)


def _packed_in(node: Any) -> Iterator[Any]:
    for name in dir(node):
        if name.startswith(SAVED):
            try:
                told = getattr(node, name)
            except RuntimeError:
                continue  # let go by an earlier backward
            for saved in told if isinstance(told, (list, tuple)) else (told,):
                if getattr(saved, "unpack_hook", None) is not None:
                    yield saved


def _is_on_host(packed: Any) -> bool:
    """Not where more of it lies on a GPU: what was packed is kept there, beside something that was read of it."""
    on_host = elsewhere = 0
    for tensor in _tensors_in(packed, MOST_DEPTH):
        size = tensor.numel() * tensor.element_size()
        if tensor.is_cuda:
            elsewhere += size
        elif tensor.dim():
            on_host += size
    return on_host > elsewhere


def _tensors_in(packed: Any, depth: int) -> Iterator[torch.Tensor]:
    """Itself, or in a container, an object's attributes or what a function has around it. Runs nothing of the user's."""
    import torch

    if isinstance(packed, torch.Tensor):
        yield packed
        return
    values: Iterable[Any]
    if isinstance(packed, dict):
        values = packed.values()
    elif isinstance(packed, (list, tuple)):
        values = packed
    elif isinstance(packed, FunctionType):
        # (A comparison with an empty cell looks at no contents.)
        values = (cell.cell_contents for cell in packed.__closure__ or () if cell != CellType())
    else:
        values = _attributes(packed).values()
    for value in itertools.islice(values, MOST_VALUES) if depth else ():
        yield from _tensors_in(value, depth - 1)


def _attributes(value: object) -> dict[str, Any]:
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}
