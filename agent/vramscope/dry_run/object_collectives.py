"""Python objects that ranks send each other, as in ``all_gather_object()``. NCCL would send them through the device.

Nothing arrives through an emulated device, so they go through the store with which the ranks found each other. On a card they
take tensors of their own size for a moment, which are not counted here.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from vramscope.dry_run import one_rank
from vramscope.guard import guarded
from vramscope.process.patching import Patches

_calls: Final = Counter[str]()
"""Number of exchanges so far, by their kind and their ranks. It is equal on all of them."""


@guarded("the objects that ranks send each other")
def install() -> None:
    """Replace the functions in the processes of a training whose ranks all run."""
    from torch import distributed

    if not distributed.is_available():
        return
    for owner in (distributed, distributed.distributed_c10d):
        Patches().wrap(owner, "all_gather_object", _all_gather)
        Patches().wrap(owner, "gather_object", _gather)
        Patches().wrap(owner, "broadcast_object_list", _broadcast)


def _all_gather(original: Any, object_list: list[Any], obj: Any, group: Any = None) -> Any:
    if not _goes_through_device(group):
        return original(object_list, obj, group)
    ranks = _ranks_of(group)
    object_list[:] = _exchanged("all_gather", obj, ranks, ranks)
    return None


def _gather(
    original: Any, obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None, **words: Any
) -> Any:  # fmt: skip
    if not _goes_through_device(group):
        return original(obj, object_gather_list, dst, group, **words)
    ranks = _ranks_of(group)
    found = _exchanged("gather", obj, ranks, ranks)
    if object_gather_list:
        object_gather_list[:] = found
    return None


def _broadcast(
    original: Any, object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None, **words: Any
) -> Any:
    if not _goes_through_device(group) or (device is not None and "cuda" not in str(device)):
        return original(object_list, src, group, device, **words)
    ranks = _ranks_of(group)
    first = words.get("group_src")
    source = src if src is not None else ranks[first] if first is not None else 0
    object_list[:] = _exchanged("broadcast", list(object_list), [source], ranks)[0]
    return None


def _goes_through_device(group: Any) -> bool:
    from torch.distributed import distributed_c10d

    device_of = getattr(distributed_c10d, "_get_object_coll_device", None)
    if device_of is None or one_rank.is_one_of_many() or distributed_c10d._rank_not_in_group(group):
        return False
    return str(device_of(group)).startswith("cuda")


def _ranks_of(group: Any) -> Sequence[int]:
    from torch import distributed

    return list(distributed.get_process_group_ranks(group or distributed.group.WORLD))


def _exchanged(kind: str, value: Any, sources: Sequence[int], ranks: Sequence[int]) -> list[Any]:
    """Return the values of these ranks. Each waits until they have arrived."""
    from torch import distributed

    store, own = distributed.distributed_c10d._get_default_store(), distributed.get_rank()
    name = f"vramscope/{kind}/{'-'.join(map(str, ranks))}/{'-'.join(map(str, sources))}"
    _calls[name] += 1
    if own in sources:
        store.set(f"{name}/{_calls[name]}/{own}", pickle.dumps(value))
    return [pickle.loads(store.get(f"{name}/{_calls[name]}/{source}")) for source in sources]
