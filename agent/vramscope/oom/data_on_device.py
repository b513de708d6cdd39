"""The program's own data on the device: a data set that was moved there as a whole, inputs that were collected before training.

Such tensors have no owner and no graph, and they were there before the forward, or memory ran out while they were made. One scan
names the variable that holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from vramscope.leaks.holders.holder_bytes import HeldMemory
from vramscope.leaks.holders.line_search import adds_at
from vramscope.leaks.scan.find_holders import find_holders, undisturbed
from vramscope.leaks.scan.scanner import SCAN_SECONDS
from vramscope.leaks.scan.storages import TensorKinds
from vramscope.leaks.scan.time_budget import TimeBudget
from vramscope.process import frames, name_roots
from vramscope.protocol.oom_record import DataHolder

LEAST_SHARE: Final = 0.1
"""Share of the memory in use. Less is not searched for, and not named."""
BATCHES: Final = 4
"""A single tensor is data, and not the batch, where it is larger than this number of batches.

A container with at least this number of tensors of one shape, from which the program takes them out again, has later batches.
"""
QUEUES: Final = ("Queue", "LifoQueue", "PriorityQueue", "SimpleQueue")
"""Names of the classes of Python's module ``queue``, which are there to be taken out of."""


def holder_of_data(
    device: int | None,
    resident_bytes: int,
    used_bytes: int,
    batch_bytes: int | None,
    owned: frozenset[int] = frozenset(),
) -> DataHolder | None:
    """Holder of most data, if that is a tenth of the memory in use. Up to SCAN_SECONDS of the thread that ran out.

    device           the one that ran out
    resident_bytes   bytes without an owner that no running forward made
    batch_bytes      bytes of the running forward's input; 0 where none runs, None where it is not known
    owned            addresses of storages that have another owner: copies of weights in a snapshot, say. They are no data
    """
    least = int(LEAST_SHARE * used_bytes)
    if resident_bytes < max(1, least):
        return None
    with undisturbed():
        groups = find_holders(TensorKinds(), TimeBudget(SCAN_SECONDS)).groups
        rows = _rows_of_batches(groups) if batch_bytes is None else frozenset()
        given = name_roots.in_flight()
        found = [
            group
            for group in groups
            if group.held_bytes <= resident_bytes
            and owned.isdisjoint(group.own)
            and _is_data(group, device, batch_bytes, rows, given)
        ]
    most = max(found, key=lambda group: group.held_bytes, default=None)
    if most is None or most.held_bytes < least:
        return None
    return _as_data(most)


def _as_data(group: HeldMemory | None) -> DataHolder | None:
    if group is None:
        return None
    holder = group.holder
    return DataHolder(
        name=holder.name, file=holder.file, line=holder.line, tensors=group.tensors, held_bytes=group.held_bytes
    )


def collected_in_step(
    device: int | None, more_than_bytes: int, owned: frozenset[int] = frozenset()
) -> DataHolder | None:
    """Return the container that has collected more in the running step than the last one allocated in all; None if there is none.

    Such results have no graph: pictures of a sampler, vectors as large as the weights.

    The user's code adds to it line by line. One call may return as much because it was given more.

    more_than_bytes   what the last step allocated beside weights, gradients and state at its peak
    """
    with undisturbed():
        codes = {(frame.f_code.co_filename, frame.f_code.co_name): frame.f_code for frame in frames.running_frames()}
        groups = find_holders(TensorKinds(), TimeBudget(SCAN_SECONDS)).groups
        given = name_roots.in_flight()
        found = [
            group
            for group in groups
            if group.held_bytes > more_than_bytes
            and group.holder.container
            and adds_at(codes.get((group.holder.file or "", group.holder.function or "")), group.holder.line)
            and group.tensors >= BATCHES
            and owned.isdisjoint(group.own)
            and _is_data(group, device, 0, frozenset(), given)
            and not any(map(_may_be_saved, _living(group)))
        ]
    return _as_data(max(found, key=lambda group: group.held_bytes, default=None))


def _is_data(
    group: HeldMemory, device: int | None, batch_bytes: int | None, rows: Collection[int], given: Collection[int]
) -> bool:
    """Whether a holder's tensors are data, and not a batch.

    rows    numbers of rows that the batch may have, where its size is not known
    given   ids of the tensors that running calls of modules were given
    """
    holder = group.holder
    tensors = _living(group)
    if any(tensor.device.index != device for tensor in tensors):
        return False
    if group.graphs or group.on_cpu or group.cyclic or group.models or holder.in_model or holder.kv_cache:
        return False
    if holder.name == "unknown":
        return False
    if batch_bytes is None:  # a batch is saved for the backward
        # Those that the program takes out again: others may be parts of one batch, or features that this forward makes.
        alike = len(tensors) >= BATCHES and len({(one.shape, one.dtype) for one in tensors}) == 1
        waiting = holder.container and (holder.drained or holder.key.owner in QUEUES) and alike
        return not any(
            _may_be_saved(tensor) or (not waiting and tensor.shape[:1].numel() in rows) for tensor in tensors
        )
    is_batch = 2 * sum(tensor.nbytes for tensor in tensors if id(tensor) in given) > group.held_bytes
    return not is_batch and (holder.container or group.held_bytes > BATCHES * batch_bytes)


def _living(group: HeldMemory) -> list[Any]:
    return [tensor for reference in group.references if (tensor := reference()) is not None]


def _rows_of_batches(groups: Iterable[HeldMemory]) -> frozenset[int]:
    """Rows of the outputs and of the tensors that are saved for the backward.

    Of a batch that is converted first (autocast, ``images.float()``), only the copy is saved; its targets and outputs have as many
    rows.
    """
    tensors = [tensor for group in groups if not group.models for tensor in _living(group) if tensor.dim()]
    return frozenset(tensor.shape[0] for tensor in tensors if tensor.grad_fn is not None or _may_be_saved(tensor))


def _may_be_saved(tensor: Any) -> bool:
    """Whether a graph, or a view, may refer to a tensor: something in C++ has it, or that cannot be known."""
    use_count = getattr(tensor, "_use_count", None)
    return use_count is None or use_count() > 1
