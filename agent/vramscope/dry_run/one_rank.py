"""One rank of many without the others: PyTorch's fake process group, whose collectives send nothing."""

from __future__ import annotations

import os
import weakref
from types import ModuleType
from typing import Any, Final

from vramscope.dry_run.changes.after_import import after_import
from vramscope.guard import guarded
from vramscope.process.patching import Patches
from vramscope.protocol.dry_run import RANKS_VARIABLE

FAKE: Final = "fake"


def is_one_of_many() -> bool:
    """Whether this process is one rank whose other ranks are not run."""
    return RANKS_VARIABLE in os.environ


def install() -> None:
    """Let each process group of the program be a fake one, if the dry run has one rank of many."""
    if is_one_of_many():
        after_import("torch.distributed", _patch)
        after_import("torch.nn.parallel.distributed", _patch_data_parallel)


def _patch(module: ModuleType) -> None:
    if not module.is_available():
        return
    # A name that was imported from the inner module is another reference to the same function.
    for owner in (module, module.distributed_c10d, module.device_mesh):
        patches = Patches()
        for name, around in (("init_process_group", _init), ("new_group", _new_group)):
            if hasattr(owner, name):
                patches.wrap(owner, name, around)


def _init(original: Any, *_args: Any, **kwargs: Any) -> Any:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    kept = {name: kwargs[name] for name in ("timeout",) if kwargs.get(name) is not None}
    return original(backend=FAKE, store=FakeStore(), rank=rank, world_size=size, **kept)


def _new_group(original: Any, *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("backend") is not None:
        kwargs["backend"] = FAKE
    elif len(args) > 2 and args[2] is not None:
        args = (*args[:2], FAKE, *args[3:])
    return original(*args, **kwargs)


_reducing_nothing: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
"""Models that have the hook of :func:`_reduce_nothing`."""


def _patch_data_parallel(module: ModuleType) -> None:
    Patches().wrap(module.DistributedDataParallel, "forward", _forward)
    Patches().wrap(module.DistributedDataParallel, "register_comm_hook", _register_comm_hook)


def _register_comm_hook(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    """The program's hook, after a first forward: PyTorch takes only one, and there is nothing to reduce."""
    return None if model in _reducing_nothing else original(model, *args, **kwargs)


def _forward(original: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
    _reduce_nothing(model)
    return original(model, *args, **kwargs)


@guarded("the gradients of one rank")
def _reduce_nothing(model: Any) -> None:
    """Give DistributedDataParallel a hook that leaves a bucket as it is, unless the program has one.

    Its own waits for the result of a collective, which the fake process group does not have.
    """
    if not model._comm_hooks:
        model.register_comm_hook(None, lambda _state, bucket: _unchanged(bucket))  # PyTorch checks annotations
        _reducing_nothing.add(model)


def _unchanged(bucket: Any) -> Any:
    from torch.futures import Future

    tensor = bucket.buffer()
    done: Any = Future(devices=[tensor.device] if tensor.is_cuda else None)
    done.set_result(tensor)
    return done
