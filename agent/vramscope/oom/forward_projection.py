"""Memory that the rest of a forward and its loss would have kept, extrapolated from what its graph keeps.

The graph is walked from the tensors in the forward's frames. What it keeps is taken as proportional to the widths of the completed
modules. Of similar blocks, those to come keep in proportion; the head behind them is estimated from its outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from vramscope.leaks.autograd.graph_walk import MOST_CHAINED, Chains, NodeBudget, tensors_in, walk
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.oom.error_stack import arguments_of, module_of
from vramscope.oom.layers import Blocks, Layer, blocks_of, layers_of
from vramscope.process.frames import locals_of

if TYPE_CHECKING:
    from types import FrameType

    import torch

LIKE_THE_OUTPUT: Final = 3
"""Tensors as large as the model's output that a loss and the beginning of its backward make: log-softmax and two gradients."""
LOSS_NUMBER_BYTES: Final = 4
"""Lower bound: a loss is computed in 32 bits."""
SOFTMAXES: Final = ("cross_entropy", "log_softmax")
"""Functions of torch.nn.functional that allocate the first of these, in the precision in which they compute."""
NEARLY: Final = 0.9
"""A request counts as large as the output from this share of it on."""
ALIKE_SHARE: Final = 0.5
"""Share of the completed part that must be blocks like those to come. An encoder says little about a decoder."""
MOST_OF_HEAD: Final = 8
"""Modules of a head. More modules behind the blocks are no head."""
RESIZES: Final = ("Conv", "Upsample", "PixelShuffle", "Fold")
"""Words in class names: behind such a module a feature may have another size."""
CHECKPOINT: Final = "torch/utils/checkpoint.py"


def own_and_to_come(
    frames: Sequence[FrameType], root: torch.nn.Module, name: str, asked_bytes: int
) -> tuple[int, int | None] | None:
    """Used bytes of this forward, and bytes that its rest and its loss would have kept. About 2 µs a node.

    None where too little was done, and in a checkpoint: the backward computes again what it freed. The second is None where modules
    run more than once: how often is not known.

    frames        of the requesting thread, innermost first
    name          of the running module
    asked_bytes   size of the request
    """
    call = max((position for position, frame in enumerate(frames) if module_of(frame) is root), default=None)
    if call is None or any(_file_of(frame).endswith(CHECKPOINT) for frame in frames):
        return None
    arguments = [tensor for value in arguments_of(frames[call]) for tensor in tensors_in(value)]
    local = [one for frame in frames[: call + 1] for value in locals_of(frame).values() for one in tensors_in(value)]
    graph = _kept_by(local, arguments)
    if graph is None:
        return None
    kept, reached, nodes = graph

    layers = layers_of(root, reached, wanted=any(one.requires_grad for one in arguments))
    done = [layer for layer in layers if layer.has_run]
    rest = [layer for layer in layers if layer.has_run is False]
    blocks = blocks_of(root, name, layers)
    head = [layer for layer in rest if id(layer.module) not in blocks.leaves]
    feature_bytes = _bytes_of_a_feature(local, [layer.width for layer in reversed(done)])
    if feature_bytes is None or not _is_mere_head(head, layers[-1]):
        return None
    if len(head) < len(rest) and not _represent_the_rest(blocks, done):
        return None

    kept_bytes, own_bytes = _beside_weights(root, kept, arguments, local)
    if _runs_again(layers, nodes):
        return own_bytes, None
    done_width, blocks_width = _kept_width(done), _kept_width(rest) - _kept_width(head)
    of_blocks = kept_bytes * blocks_width / done_width if done_width else 0.0
    asking = root.get_submodule(name)  # its output may be the request
    of_head = feature_bytes * _kept_width(layer for layer in head if layer.module is not asking)
    output_bytes = feature_bytes * _output_width(layers, blocks)
    of_loss = _of_loss(output_bytes, asked_bytes, all_modules_done=not rest, softmax=_is_softmax(frames[0]))
    return own_bytes, int(of_blocks + of_head + of_loss)


def _kept_width(layers: Iterable[Layer]) -> int:
    return sum(layer.kept_width for layer in layers)


def _is_mere_head(head: Sequence[Layer], last: Layer) -> bool:
    """Whether few modules follow the blocks, and none of them changes the size of a feature."""
    names = [type(layer.module).__name__ for layer in (*head, last)]
    return len(head) <= MOST_OF_HEAD and not any(word in name for name in names for word in RESIZES)


def _represent_the_rest(blocks: Blocks, done: Sequence[Layer]) -> bool:
    """Whether a block is done, and most of the completed part was such blocks."""
    if not any(id(layer.module) in blocks.others for layer in done):
        return False
    return _kept_width(layer for layer in done if id(layer.module) in blocks.leaves) >= ALIKE_SHARE * _kept_width(done)


def _output_width(layers: Sequence[Layer], blocks: Blocks) -> int:
    """Width of the model's output: of its last module, or of the widest one outside the blocks.

    In the order of their creation, the output need not be the last module.
    """
    apart = (layer.kept_width for layer in layers if id(layer.module) not in blocks.leaves)
    return max(layers[-1].width, max(apart, default=0))


def _beside_weights(
    root: torch.nn.Module, kept: Storages, arguments: Sequence[torch.Tensor], local: Iterable[torch.Tensor]
) -> tuple[int, int]:
    """Bytes that the graph keeps, and those together with local tensors on the device; without weights and buffers."""
    weights: Storages = {}
    for one in (*root.parameters(), *root.buffers()):
        storages.add(weights, one)
    # Of an input the slice counts, not the data set that it is a slice of.
    for one in arguments:
        found = storages.storage_of(one)
        if found is not None and found[0] in kept:
            kept[found[0]] = min(found[1], one.nbytes)
    own = dict(kept)
    for one in local:
        found = storages.storage_of(one)
        if found is not None and one.is_cuda:
            own.setdefault(found[0], min(found[1], one.nbytes))
    kept_bytes = sum(size for storage, size in kept.items() if storage not in weights)
    return kept_bytes, sum(size for storage, size in own.items() if storage not in weights)


def _runs_again(layers: Iterable[Layer], nodes: Iterable[Any]) -> bool:
    """Whether a module has run more than once: each of its weights is used more often than it is shared.

    Spectral norm alone uses one weight twice.
    """
    layers = list(layers)
    owners = Counter(id(one) for layer in layers for one in layer.module.parameters(recurse=False))
    uses: Counter[int] = Counter()
    for node in nodes:
        for child, _ in node.next_functions:
            variable = getattr(child, "variable", None)  # of the nodes where gradients are accumulated
            if variable is not None:
                uses[id(variable)] += 1
    for layer in layers:
        trained = [id(one) for one in layer.module.parameters(recurse=False) if one.requires_grad]
        if trained and all(uses[one] > owners[one] for one in trained):
            return True
    return False


def _kept_by(
    tensors: Iterable[torch.Tensor], arguments: Iterable[torch.Tensor]
) -> tuple[Storages, Storages, list[Any]] | None:
    """Storages that the graphs of tensors keep, the weights they lead to, and their nodes; without the graphs of the arguments.

    None where the graphs are too large to be walked.
    """
    chains = Chains()
    chains.step_numbers = 1 << 62  # one step has all of them
    budget, seen = NodeBudget(chains, MOST_CHAINED), set[object]()
    kept: Storages = {}
    reached: Storages = {}
    of_arguments: set[object] = set()
    for is_argument, ones in ((True, arguments), (False, tensors)):
        for one in ones:
            if one.grad_fn is None or one.grad_fn in seen:
                continue
            graph = walk(one.grad_fn, budget, seen)
            if not graph.complete:
                return None
            if not is_argument:
                kept.update(graph.saved)
                reached.update(graph.parameters)
        if is_argument:
            of_arguments = set(seen)
    return kept, reached, list(seen - of_arguments)


def _bytes_of_a_feature(tensors: Sequence[torch.Tensor], widths: Iterable[int]) -> float | None:
    """Bytes of one feature over all rows and positions, from a tensor with the first of these widths that one has.

    The width is the last dimension, or the second of images.
    """
    made = [one for one in tensors if one.grad_fn is not None and one.dim() > 1]
    for width in widths:
        for one in made:
            if one.shape[1 if one.dim() > 3 else -1] == width:
                return float(one.numel() / width * max(LOSS_NUMBER_BYTES, one.element_size()))
    return None


def _of_loss(output_bytes: float, asked_bytes: int, *, all_modules_done: bool, softmax: bool) -> float:
    """Bytes that a loss and the beginning of its backward still allocate.

    all_modules_done  all modules are done, so that the request may be the first of these tensors
    softmax   it is
    """
    if all_modules_done and softmax:
        return (LIKE_THE_OUTPUT - 1) * asked_bytes
    if all_modules_done and asked_bytes >= NEARLY * output_bytes:
        return (LIKE_THE_OUTPUT - 1) * output_bytes  # for example the output in 32 bits, which is freed
    return LIKE_THE_OUTPUT * output_bytes


def _is_softmax(frame: FrameType) -> bool:
    """Whether a loss over classes made the request."""
    return frame.f_code.co_name in SOFTMAXES and _file_of(frame).endswith("torch/nn/functional.py")


def _file_of(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")
