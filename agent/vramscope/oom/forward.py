"""Which module ran when memory ran out, how far the forward was, and what was still to come of it.

By the widths of its modules' outputs it is told how far, which is crude: an output may be kept for the backward or be let go of at
once, pictures get smaller or larger from layer to layer, and what is there besides (temporaries, batches that wait) is no part of
it. Of a model whose blocks are alike the graph says more once one of them is over: what it keeps by now, in proportion to the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from vramscope.graphs import storages
from vramscope.graphs.roots import locals_of
from vramscope.graphs.storages import Storages
from vramscope.graphs.walk import MOST_CHAINED, Budget, Chains, tensors_in, walk
from vramscope.guard import guarded
from vramscope.oom.stack import given_to, module_of

if TYPE_CHECKING:
    from types import FrameType

    import torch

WIDTHS: Final = ("out_features", "out_channels", "embedding_dim", "num_features", "nf")
"""attributes that tell the width of a module's output; ``nf`` is that of transformers' Conv1D"""
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


class Running(NamedTuple):
    """The module that ran."""

    name: str
    progress: float | None
    """how far its model was, 0 to 1; None: where in the model's own code it was nobody knows"""
    to_come_bytes: int | None = None
    """that the rest of the forward and its loss would have kept, drawn out from what its graph keeps; None: too little was over"""
    own_bytes: int | None = None
    """what of the memory in use is this forward's: what its graph keeps, and what is at hand in it; None: not known"""


def running(
    frames: Sequence[FrameType], roots: Iterable[torch.nn.Module], *, waits: bool = True, asked_bytes: int | None = None
) -> Running | None:
    """The innermost module of a known model whose forward is on the stack; None where there is none.

    frames        of the thread that asked, innermost first
    waits         it stands still meanwhile: its graph may be walked, some 2 µs a node
    asked_bytes   what it asked for
    """
    roots = list(roots)
    for frame in frames:
        module = module_of(frame)
        if module is None:
            continue
        for root in roots:
            for name, child in root.named_modules():
                if child is module:
                    told = None
                    if waits:
                        with guarded("what was to come of the forward"):
                            told = _own_and_to_come(frames, root, name, asked_bytes or 0)
                    own, to_come = told or (None, None)
                    return Running(name or type(root).__name__, _progress(root, module), to_come, own)
    return None


def _progress(root: torch.nn.Module, module: torch.nn.Module) -> float | None:
    """How far a forward is when this module runs: what the root's childless modules up to it give back, as a share of all of them
    and of the loss, each by the width of its output.

    Of a language model the last module's output is wider than all before it, and a loss of several classes makes more of that
    size: copies in 32 bits, their softmax, gradients.
    """
    leaves = list(_leaves(root))
    inside = set(map(id, _leaves(module)))
    first = next((place for place, leaf in enumerate(leaves) if id(leaf) in inside), None)
    if first is None or module is root:
        return None
    widths = _widths(leaves)
    # Of a module with children it is not known which of them ran: the first is the safe answer.
    return sum(widths[: first + 1]) / (sum(widths) + LIKE_THE_OUTPUT * widths[-1])


def _own_and_to_come(
    frames: Sequence[FrameType], root: torch.nn.Module, name: str, asked_bytes: int
) -> tuple[int, int] | None:
    """``name``: of the module that runs. None also where a checkpoint runs it: what that lets go of, the backward makes anew."""
    call = max((place for place, frame in enumerate(frames) if module_of(frame) is root), default=None)
    if call is None or any(frame.f_code.co_filename.replace("\\", "/").endswith(CHECKPOINT) for frame in frames):
        return None
    given = [tensor for value in given_to(frames[call]) for tensor in tensors_in(value)]
    at_hand = [one for frame in frames[: call + 1] for value in locals_of(frame).values() for one in tensors_in(value)]
    seen = _kept_by(at_hand, given)
    if seen is None:
        return None
    kept, reached = seen
    weights: Storages = {}
    for one in (*root.parameters(), *root.buffers()):
        storages.add(weights, one)
    # Of the input what the model was given counts, and not the data set of which it is a slice.
    for one in given:
        found = storages.storage_of(one)
        if found is not None and found[0] in kept:
            kept[found[0]] = min(found[1], one.nbytes)
    kept_bytes = sum(size for storage, size in kept.items() if storage not in weights)
    own = dict(kept)
    for one in at_hand:
        found = storages.storage_of(one)
        if found is not None and one.is_cuda:
            own.setdefault(found[0], min(found[1], one.nbytes))
    own_bytes = sum(size for storage, size in own.items() if storage not in weights)
    leaves = list(_leaves(root))
    widths, ran = _widths(leaves), _ran(leaves, reached, wanted=any(one.requires_grad for one in given))
    # (An embedding keeps the numbers of its words, however wide they are.)
    keeps = [0 if hasattr(leaf, "num_embeddings") else width for leaf, width in zip(leaves, widths, strict=True)]
    over = {id(leaf): width for leaf, width, has in zip(leaves, keeps, ran, strict=True) if has}
    rest = {id(leaf): width for leaf, width, has in zip(leaves, keeps, ran, strict=True) if has is False}
    alike, others = _alike(root, name, over.keys() | rest.keys())
    blocks = {id(leaf) for block in alike for leaf in _leaves(block)}
    of_alike = sum(width for leaf, width in over.items() if leaf in blocks)
    known = others and any(id(leaf) in over for block in others for leaf in _leaves(block))
    known = known and of_alike >= ALIKE_SHARE * sum(over.values())
    head = [leaf for leaf in leaves if id(leaf) in rest and id(leaf) not in blocks]
    ends = len(head) <= MOST_OF_HEAD and not any(
        word in type(leaf).__name__ for leaf in (*head, leaves[-1]) for word in RESIZES
    )
    feature = _bytes_of_a_feature(at_hand, [width for width, has in zip(widths, ran, strict=True) if has][::-1])
    if feature is None or not ends or not (known or len(head) == len(rest)):
        return None
    widths_over = sum(over.values())
    of_blocks = (
        kept_bytes * sum(width for leaf, width in rest.items() if leaf in blocks) / widths_over if widths_over else 0.0
    )
    asking = root.get_submodule(name)  # (its output is what was asked for, if it is one of them)
    # (A model's output is that of the last of its modules, or of the widest that is none of its blocks: in the order in which they
    # were made it need not be the last.)
    output = max(widths[-1], *(width for leaf, width in zip(leaves, keeps, strict=True) if id(leaf) not in blocks), 0)
    of_loss = _of_loss(output * feature, asked_bytes, begun=not rest, softmax=_is_softmax(frames[0]))
    of_head = sum(rest[id(leaf)] for leaf in head if leaf is not asking) * feature
    return own_bytes, int(of_blocks + of_head + of_loss)


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
    code = frame.f_code
    return code.co_name in SOFTMAXES and code.co_filename.replace("\\", "/").endswith("torch/nn/functional.py")


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


def _alike(
    root: torch.nn.Module, name: str, keeping: Collection[int]
) -> tuple[list[torch.nn.Module], list[torch.nn.Module]]:
    """The blocks of which one runs, and those of them that do not: the outermost modules on the way to it that come several times
    and of which something is kept. In a row of single layers those between that have no weights are a part of them."""
    parent = root
    for part in name.split(".") if name else ():
        child = parent.get_submodule(part)
        brothers = list(parent.children())
        before = [one for one in brothers[: brothers.index(child) + 1] if next(one.parameters(), None) is not None]
        block = before[-1] if before else child
        shape = _shape(block)
        alike = [one for one in brothers if _shape(one) == shape and any(id(leaf) in keeping for leaf in _leaves(one))]
        if len(alike) > 1:
            plain = [one for one in brothers if next(one.parameters(), None) is None]
            return [*alike, *plain], [one for one in alike if one is not block]
        parent = child
    return [], []


def _shape(module: torch.nn.Module) -> tuple[object, ...]:
    return type(module), *(tuple(one.shape) for one in module.parameters())


def _bytes_of_a_feature(tensors: Sequence[torch.Tensor], widths: Iterable[int]) -> float | None:
    """Of all rows (and places), by a tensor of the first of these widths of which there is one: its last dimension, or the second
    of pictures."""
    made = [one for one in tensors if one.grad_fn is not None and one.dim() > 1]
    for width in widths:
        for one in made:
            if one.shape[1 if one.dim() > 3 else -1] == width:
                return float(one.numel() / width * max(LOSS_NUMBER_BYTES, one.element_size()))
    return None


def _widths(leaves: Iterable[torch.nn.Module]) -> list[int]:
    """Of each one's output, as its own attributes tell it; where they do not (ReLU, Dropout), as of the one before it."""
    widths: list[int] = []
    for leaf in leaves:
        told = (vars(leaf).get(name) for name in WIDTHS)
        width = next((value for value in told if type(value) is int and value > 0), None)
        widths.append(width or (widths[-1] if widths else 1))
    return widths


def _leaves(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module.modules():
        if next(child.children(), None) is None:
            yield child
