"""What the rest of a forward and its loss would have kept, drawn out from what its graph keeps by now.

The graph is walked from the tensors that are at hand in the forward's frames. What it keeps goes as the widths of the modules that
are over; of blocks that are alike those to come keep in proportion, and the head behind them is reckoned by its outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from vramscope.leaks.autograd.graph_walk import MOST_CHAINED, Budget, Chains, tensors_in, walk
from vramscope.leaks.scan import storages
from vramscope.leaks.scan.storages import Storages
from vramscope.oom.layers import Blocks, Layer, blocks_of, layers_of
from vramscope.oom.stack import given_to, module_of
from vramscope.process.frames import locals_of

if TYPE_CHECKING:
    from types import FrameType

    import torch

LIKE_THE_OUTPUT: Final = 3
"""of the size of a model's output, that a loss makes and its backward begins with: log-softmax, and two gradients"""
LOSS_NUMBER_BYTES: Final = 4
"""at least: a loss is reckoned in 32 bits"""
SOFTMAXES: Final = ("cross_entropy", "log_softmax")
"""functions of torch.nn.functional that ask for the first of these, in as many bits as they reckon"""
NEARLY: Final = 0.9
"""of a size, with which what was asked for is as large"""
ALIKE_SHARE: Final = 0.5
"""of what is over, that must have been blocks like those to come: an encoder says little of a decoder"""
MOST_OF_HEAD: Final = 8
"""modules behind the blocks: with more it is no mere head"""
RESIZES: Final = ("Conv", "Upsample", "PixelShuffle", "Fold")
"""in the names of classes: behind them a feature need not be as large as before"""
CHECKPOINT: Final = "torch/utils/checkpoint.py"


def own_and_to_come(
    frames: Sequence[FrameType], root: torch.nn.Module, name: str, asked_bytes: int
) -> tuple[int, int] | None:
    """Bytes of the memory in use that are this forward's, and those that its rest and its loss would have kept. Some 2 µs a node.

    None where too little was over, and where a checkpoint runs it: what that lets go of, the backward makes anew.

    frames        of the thread that asked, innermost first
    name          of the module that runs
    asked_bytes   what it asked for
    """
    call = max((place for place, frame in enumerate(frames) if module_of(frame) is root), default=None)
    if call is None or any(_file_of(frame).endswith(CHECKPOINT) for frame in frames):
        return None
    given = [tensor for value in given_to(frames[call]) for tensor in tensors_in(value)]
    at_hand = [one for frame in frames[: call + 1] for value in locals_of(frame).values() for one in tensors_in(value)]
    graph = _kept_by(at_hand, given)
    if graph is None:
        return None
    kept, reached = graph

    layers = layers_of(root, reached, wanted=any(one.requires_grad for one in given))
    over = [layer for layer in layers if layer.has_run]
    rest = [layer for layer in layers if layer.has_run is False]
    blocks = blocks_of(root, name, layers)
    head = [layer for layer in rest if id(layer.module) not in blocks.leaves]
    feature_bytes = _bytes_of_a_feature(at_hand, [layer.width for layer in reversed(over)])
    if feature_bytes is None or not _is_mere_head(head, layers[-1]):
        return None
    if len(head) < len(rest) and not _tell_of_those_to_come(blocks, over):
        return None

    kept_bytes, own_bytes = _beside_weights(root, kept, given, at_hand)
    over_width, blocks_width = _kept_width(over), _kept_width(rest) - _kept_width(head)
    of_blocks = kept_bytes * blocks_width / over_width if over_width else 0.0
    asking = root.get_submodule(name)  # (its output is what was asked for, if it is one of them)
    of_head = feature_bytes * _kept_width(layer for layer in head if layer.module is not asking)
    output_bytes = feature_bytes * _output_width(layers, blocks)
    of_loss = _of_loss(output_bytes, asked_bytes, begun=not rest, softmax=_is_softmax(frames[0]))
    return own_bytes, int(of_blocks + of_head + of_loss)


def _kept_width(layers: Iterable[Layer]) -> int:
    return sum(layer.kept_width for layer in layers)


def _is_mere_head(head: Sequence[Layer], last: Layer) -> bool:
    """Whether what comes behind the blocks is few modules, none of which makes a feature larger or smaller."""
    names = [type(layer.module).__name__ for layer in (*head, last)]
    return len(head) <= MOST_OF_HEAD and not any(word in name for name in names for word in RESIZES)


def _tell_of_those_to_come(blocks: Blocks, over: Sequence[Layer]) -> bool:
    """Whether a block is over, and most of what is over was such blocks."""
    if not any(id(layer.module) in blocks.others for layer in over):
        return False
    return _kept_width(layer for layer in over if id(layer.module) in blocks.leaves) >= ALIKE_SHARE * _kept_width(over)


def _output_width(layers: Sequence[Layer], blocks: Blocks) -> int:
    """Of the model's output: that of the last of its modules, or of the widest that is none of its blocks. In the order in which
    they were made it need not be the last."""
    apart = (layer.kept_width for layer in layers if id(layer.module) not in blocks.leaves)
    return max(layers[-1].width, max(apart, default=0))


def _beside_weights(
    root: torch.nn.Module, kept: Storages, given: Sequence[torch.Tensor], at_hand: Iterable[torch.Tensor]
) -> tuple[int, int]:
    """Bytes that the graph keeps, and with them those that are at hand on the card; weights and buffers are none of them."""
    weights: Storages = {}
    for one in (*root.parameters(), *root.buffers()):
        storages.add(weights, one)
    # Of the input what the model was given counts, and not the data set of which it is a slice.
    for one in given:
        found = storages.storage_of(one)
        if found is not None and found[0] in kept:
            kept[found[0]] = min(found[1], one.nbytes)
    own = dict(kept)
    for one in at_hand:
        found = storages.storage_of(one)
        if found is not None and one.is_cuda:
            own.setdefault(found[0], min(found[1], one.nbytes))
    kept_bytes = sum(size for storage, size in kept.items() if storage not in weights)
    return kept_bytes, sum(size for storage, size in own.items() if storage not in weights)


def _kept_by(tensors: Iterable[torch.Tensor], given: Iterable[torch.Tensor]) -> tuple[Storages, Storages] | None:
    """What the graphs of tensors keep, and the weights to which they lead; without what those keep that a model was given. None
    where they are too large to be walked."""
    chains = Chains()
    chains.step_numbers = 1 << 62  # (it is one step's)
    budget, seen = Budget(chains, MOST_CHAINED), set[object]()
    kept: Storages = {}
    reached: Storages = {}
    for is_given, ones in ((True, given), (False, tensors)):
        for one in ones:
            if one.grad_fn is None or one.grad_fn in seen:
                continue
            graph = walk(one.grad_fn, budget, seen)
            if not graph.complete:
                return None
            if not is_given:
                kept.update(graph.saved)
                reached.update(graph.parameters)
    return kept, reached


def _bytes_of_a_feature(tensors: Sequence[torch.Tensor], widths: Iterable[int]) -> float | None:
    """Of all rows (and places), by a tensor of the first of these widths of which there is one: its last dimension, or the second
    of pictures."""
    made = [one for one in tensors if one.grad_fn is not None and one.dim() > 1]
    for width in widths:
        for one in made:
            if one.shape[1 if one.dim() > 3 else -1] == width:
                return float(one.numel() / width * max(LOSS_NUMBER_BYTES, one.element_size()))
    return None


def _of_loss(output_bytes: float, asked_bytes: int, *, begun: bool, softmax: bool) -> float:
    """What a loss makes of the model's output and its backward begins with, as far as it is still to come.

    begun     all modules are over, so that what was asked for may be the first of it
    softmax   it is
    """
    if begun and softmax:
        return (LIKE_THE_OUTPUT - 1) * asked_bytes
    if begun and asked_bytes >= NEARLY * output_bytes:
        return (LIKE_THE_OUTPUT - 1) * output_bytes  # (the output in 32 bits, say: it is let go of, or is one of them)
    return LIKE_THE_OUTPUT * output_bytes


def _is_softmax(frame: FrameType) -> bool:
    """Whether a loss over classes asks."""
    return frame.f_code.co_name in SOFTMAXES and _file_of(frame).endswith("torch/nn/functional.py")


def _file_of(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")
