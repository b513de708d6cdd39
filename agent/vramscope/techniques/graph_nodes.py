"""Reads an autograd graph before backward: node names, checkpointed functions, and the devices of saved tensors."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import torch

MAX_NODES: Final = 20_000
"""Maximum number of nodes that are read, in about 20 ms."""
MAX_OPENED: Final = 500
"""Maximum number of nodes whose packed saved tensors are inspected, at about 20 µs each."""
MAX_DEPTH: Final = 2
MAX_VALUES: Final = 8
"""Maximum number of values that are inspected per container of packed data."""
SAVED: Final = "_raw_saved_"
REENTRANT: Final = "CheckpointFunctionBackward"
"""Node that represents everything that a reentrant checkpoint runs."""
PRODUCTS: Final = ("BmmBackward", "BaddbmmBackward")
SOFTMAX: Final = ("SoftmaxBackward", "SafeSoftmaxBackward")
BETWEEN: Final = (
    "View", "UnsafeView", "ReshapeAlias", "Expand", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Clone", "ToCopy", "Div", "Mul",
    "Add", "Sub", "Tanh", "Where", "MaskedFill", "NativeDropout", "FusedDropout",
)  # fmt: skip
"""Operations between the matrix products of attention and its softmax: scaling, masking, dropout."""
MAX_BETWEEN: Final = 8
"""Maximum number of these in a row."""


def name_of(node: Any) -> str:
    """Name of a node by its class: a custom Function may have set another ``name`` on it (``ctx.name = "scale"``)."""
    return str(type(node).name(node))


def first_node_name(root: Any) -> str:
    """Name of the node that made a tensor; "" if there is none."""
    return next((name_of(node) for node in _nodes(root, MAX_NODES)), "")


def node_names(root: Any) -> Counter[str]:
    """Names of the nodes of a tensor's graph, with counts. About 1 µs per node."""
    return names_and_oldest(root)[0]


def names_and_oldest(root: Any) -> tuple[Counter[str], int | None]:
    """Names of the nodes with counts, and autograd's number of the oldest node; None if there is none."""
    names: Counter[str] = Counter()
    oldest: int | None = None
    for node in _nodes(root, MAX_NODES):
        names[name_of(node)] += 1
        number = node._sequence_nr()
        oldest = number if oldest is None or number < oldest else oldest
    return names, oldest


def softmaxes_between_products(root: Any) -> int:
    """Number of softmaxes between two batched matrix products: attention with whole score matrices.

    The input of a router's softmax comes from a layer (in an einsum from a batch of one), and the softmax of a loss has no
    product after it. About 1 µs per node.
    """
    softmaxes: set[Any] = set()
    for node in _nodes(root, MAX_NODES):
        if name_of(node).startswith(PRODUCTS):
            softmaxes.update(_inputs(node, SOFTMAX))
    return sum(any(_matrices(product) > 1 for product in _inputs(softmax, PRODUCTS)) for softmax in softmaxes)


def _inputs(node: Any, names: tuple[str, ...]) -> Iterator[Any]:
    """Input nodes with these names, with only operations of BETWEEN on the path."""
    seen: set[Any] = set()
    level = [node]
    for _ in range(MAX_BETWEEN):
        children = {child for one in level for child, _ in one.next_functions if child is not None} - seen
        seen |= children
        yield from (child for child in children if name_of(child).startswith(names))
        level = [child for child in children if name_of(child).partition("Backward")[0] in BETWEEN]


def _matrices(product: Any) -> int:
    """Batch size of a batched matrix product; 0 if PyTorch does not report it."""
    metadata = getattr(product, "_input_metadata", ())
    return int(metadata[0].shape[0]) if metadata else 0


def checkpointed_functions(root: Any) -> Iterator[Any]:
    """Functions of the reentrant checkpoints in a tensor's graph. About 1 µs per node."""
    return (getattr(node, "run_function", None) for node in _nodes(root, MAX_NODES) if name_of(node) == REENTRANT)


def saves_on_host(root: Any) -> bool:
    """Whether hooks have packed saved tensors of the graph into host memory: as tensors, or as objects with tensors.

    PyTorch 2.13 exposes the packed objects. False in versions that do not.
    """
    return any(_is_on_host(saved.data) for node in _nodes(root, MAX_OPENED) for saved in _packed_in(node))


def _nodes(root: Any, limit: int) -> Iterator[Any]:
    import torch

    if not isinstance(root, torch.Tensor) or root.grad_fn is None:
        return
    seen: set[Any] = {root.grad_fn}
    stack: list[Any] = [root.grad_fn]
    while stack and len(seen) < limit:
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
                value = getattr(node, name)
            except RuntimeError:
                continue  # freed by an earlier backward
            for saved in value if isinstance(value, (list, tuple)) else (value,):
                if getattr(saved, "unpack_hook", None) is not None:
                    yield saved


def _is_on_host(packed: Any) -> bool:
    """Whether most bytes are in host memory. A packed GPU tensor may come with small values on the host."""
    on_host = on_gpu = 0
    for tensor in _tensors_in(packed, MAX_DEPTH):
        size = tensor.numel() * tensor.element_size()
        if tensor.is_cuda:
            on_gpu += size
        elif tensor.dim():
            on_host += size
    return on_host > on_gpu


def _tensors_in(packed: Any, depth: int) -> Iterator[torch.Tensor]:
    """Yield tensors: the object itself, or in a container, in attributes, or in a closure. Runs no code of the user."""
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
        # Comparing with an empty cell does not read contents.
        values = (cell.cell_contents for cell in packed.__closure__ or () if cell != CellType())
    else:
        values = _attributes(packed).values()
    for value in itertools.islice(values, MAX_VALUES) if depth else ():
        yield from _tensors_in(value, depth - 1)


def _attributes(value: object) -> dict[str, Any]:
    try:
        return dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        return {}
